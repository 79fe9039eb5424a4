"""Versions: which fit, and what is said of those that don't."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import torchft_x
from tests.unit.launch.doctor.findings import check
from torchft_x.launch.doctor import software
from torchft_x.launch.doctor.runner import Case
from torchft_x.launch.doctor.software import BOUNDS, PYTHON, package_finding, torchx_finding

ROOT = Path(__file__).parents[4]


def test_the_bounds_are_those_of_the_project_file() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    dependencies = text[text.index("dependencies = [") :].split("]")[0]
    for package, (least, below) in BOUNDS.items():
        wanted = f'"{package}>={least}' + (f",<{below}" if below else "") + ("; " if package == "isal" else '"')
        assert wanted in dependencies
    assert len(re.findall(r'^\s+"', dependencies, re.MULTILINE)) == len(BOUNDS)
    assert f'requires-python = ">={PYTHON[0]}.{PYTHON[1]}"' in text


@pytest.mark.parametrize(
    ("package", "version", "level"),
    [
        ("torch", "2.13.0+cpu", "ok"),
        ("torch", "2.11.0a0+git12ab", "ok"),
        ("torch", "2.10.9", "problem"),
        ("torch", None, "problem"),
        ("protobuf", "6.31", "ok"),
        ("protobuf", "8.0.0", "problem"),
    ],
)
def test_versions(package: str, version: str | None, level: str) -> None:
    found = package_finding(package, {package: version}.get)
    assert found.level == level
    if level == "problem":
        assert f"pip install '{package}>=" in found.text


@pytest.mark.parametrize(
    ("installed", "level", "said"),
    [
        ({"torchx": "0.7.0"}, "ok", "stable"),
        ({"torchx-nightly": "2026.10.26"}, "ok", "nightly"),
        ({"torchx": "0.7.0", "torchx-nightly": "2026.10.26"}, "problem", "both installed"),
        ({"torchx": "0.6.0"}, "problem", "too old"),
        ({}, "warning", "pip install torchx"),
    ],
)
def test_which_line_of_torchx(installed: dict[str, str], level: str, said: str) -> None:
    check(torchx_finding(installed.get), level, said)


def test_this_python_and_this_package_are_named() -> None:
    first, second = software.check_python(Case(environ={}, folder=Path("/"), home=Path("/")))
    assert sys.executable in first.text
    assert second.text.endswith(f" in {Path(torchft_x.__file__).resolve().parent}.")
