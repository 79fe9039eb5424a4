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
from torchft_x.launch.doctor.software import BOUNDS, PYTHON, check_packages

ROOT = Path(__file__).parents[4]


def test_the_bounds_are_those_of_the_project_file() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    dependencies = text[text.index("dependencies = [") :].split("]")[0]
    for package, (least, below) in BOUNDS.items():
        wanted = f'"{package}>={least}' + (f",<{below}" if below else "") + ("; " if package == "isal" else '"')
        assert wanted in dependencies
    assert len(re.findall(r'^\s+"', dependencies, re.MULTILINE)) == len(BOUNDS)
    assert f'requires-python = ">={PYTHON[0]}.{PYTHON[1]}"' in text


CASE = Case(environ={}, folder=Path("/"), home=Path("/"))
FINE = {package: least for package, (least, _) in BOUNDS.items()}


@pytest.mark.parametrize(
    ("package", "version", "said"),
    [
        ("torch", "2.13.0+cpu", ""),
        ("torch", "2.11.0a0+git12ab", ""),
        ("torch", "2.10.9", "pip install 'torch>=2.11'"),
        ("torch", None, "pip install 'torch>=2.11'"),
        ("protobuf", "6.31", ""),
        ("protobuf", "8.0.0", "pip install 'protobuf>=6.31,<8'"),
        ("torchx", "0.6.0", "pip install 'torchx>=0.7.0'"),
    ],
)
def test_versions(package: str, version: str | None, said: str) -> None:
    *wrong, last = check_packages(CASE, {**FINE, package: version}.get)
    assert [said in f.text for f in wrong if f.level == "problem"] == ([True] if said else [])
    assert last.level == "ok"
    assert (f"{package} {version}" in last.text) != bool(said)


@pytest.mark.parametrize(
    ("installed", "level", "said"),
    [
        ({"torchx-nightly": "2026.10.26"}, "ok", "torchx-nightly 2026.10.26"),
        ({"torchx": "0.7.0", "torchx-nightly": "2026.10.26"}, "problem", "both installed"),
        ({}, "warning", "pip install torchx"),
    ],
)
def test_which_line_of_torchx(installed: dict[str, str], level: str, said: str) -> None:
    first, *_ = check_packages(CASE, {**FINE, "torchx": None, **installed}.get)
    check(first, level, said)


def test_this_python_and_this_package_are_named() -> None:
    (found,) = software.check_python(CASE)
    assert sys.executable in found.text
    assert found.text.endswith(f" in {Path(torchft_x.__file__).resolve().parent}.")
