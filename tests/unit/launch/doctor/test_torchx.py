"""TorchX's plugins and configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.launch.doctor.findings import check
from torchft_x.launch.doctor.runner import Case, Finding
from torchft_x.launch.doctor.torchx import config_files, config_findings, plugin_findings

ALL = ["local_docker", "local_cwd", "slurm", "kubernetes"]


def asked(schedulers: list[str] = ALL, components: tuple[str, ...] = ("dist.ddp", "utils.echo")) -> dict:
    return {"schedulers": schedulers, "default": schedulers[0], "components": list(components)}


def configs(folder: Path, home: str = "", project: str = "") -> list[Finding]:
    for name, text in (("home", home), ("project", project)):
        (folder / name).mkdir()
        if text:
            (folder / name / ".torchxconfig").write_text(text)
    case = Case(environ={}, folder=folder / "project", home=folder / "home")
    return list(config_findings(config_files(case), ALL))


@pytest.mark.parametrize(
    ("schedulers", "components", "registered", "level", "said"),
    [
        (ALL, ("dist.ddp", "utils.x"), [], "ok", "./components.py:hsdp works in a clone"),
        (ALL, ("ft.hsdp", "dist.ddp", "utils.x"), [], "ok", "torchx run ft.hsdp works anywhere"),
        (["mine"], ("dist.ddp", "utils.x"), ["acme"], "problem", "local_cwd, slurm, kubernetes are hidden by a plugin of acme"),
        (["mine", *ALL], ("dist.ddp", "utils.x"), ["acme"], "warning", "the default is mine"),
        (ALL, ("acme.train",), [], "warning", "dist and utils components are hidden"),
    ],
)  # fmt: skip
def test_plugins(
    schedulers: list[str], components: tuple[str, ...], registered: list[str], level: str, said: str
) -> None:
    (found,) = plugin_findings(asked(schedulers, components), registered)
    check(found, level, said)


def test_no_file_and_a_good_file_are_fine(tmp_path: Path) -> None:
    (found,) = configs(tmp_path, project="[cli:run]\nscheduler = local_cwd\n[slurm]\njob_dir = a%%b\n")
    check(found, "ok", str(tmp_path / "project" / ".torchxconfig"))
    assert [found.level for found in config_findings([], ALL)] == ["ok"]


RUN = "[cli:run]\nscheduler = {}\n[slurm]\npartition = a\n"


@pytest.mark.parametrize(
    ("home", "project", "level", "said"),
    [
        (RUN.format("slurm"), RUN.format("local_cwd"), "warning", "home/.torchxconfig says scheduler = slurm"),
        ("", RUN.format("acme"), "problem", "scheduler = acme is none that TorchX knows here"),
        ("", "no section", "problem", "can't be read"),
        ("", "[a]\nx = 1\n[a]\nx = 2\n", "problem", "can't be read"),
    ],
)
def test_two_files_that_differ_and_mistakes(home: str, project: str, level: str, said: str, tmp_path: Path) -> None:
    (found,) = configs(tmp_path, home=home, project=project)
    check(found, level, said)


def test_a_percent_is_named_with_its_place(tmp_path: Path) -> None:
    (found,) = configs(tmp_path, project="[slurm]\nformat = %H\nfine = 1\n")
    check(found, "problem", "the value of format in [slurm] holds a '%', so every torchx command that reads it fails")


def test_the_variable_names_the_only_file(tmp_path: Path) -> None:
    (tmp_path / ".torchxconfig").write_text("[cli:run]\nscheduler = %x\n")
    case = Case(environ={"TORCHXCONFIG": str(tmp_path / "other")}, folder=tmp_path, home=tmp_path)
    assert config_files(case) == [tmp_path / "other"]
    (found,) = config_findings(config_files(case), ALL)
    assert "other can't be read" in found.text
