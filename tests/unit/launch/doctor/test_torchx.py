"""TorchX's plugins and configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.launch.doctor.findings import check
from torchft_x.launch.doctor.runner import Case, Finding
from torchft_x.launch.doctor.torchx import (
    component_finding,
    config_files,
    config_findings,
    scheduler_finding,
)

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


def test_schedulers() -> None:
    assert scheduler_finding(asked(), []).level == "ok"
    check(
        scheduler_finding(asked(["mine"]), ["acme"]),
        "problem",
        "local_cwd, slurm, kubernetes are hidden by a plugin of acme",
    )
    check(scheduler_finding(asked(["mine", *ALL]), ["acme"]), "warning", "the default is mine")


def test_components() -> None:
    assert "./components.py:hsdp" in component_finding(asked(), []).text
    assert "torchx run ft.hsdp" in component_finding(asked(components=("ft.hsdp", "dist.ddp", "utils.x")), []).text
    check(
        component_finding(asked(components=("acme.train",)), ["acme"]),
        "warning",
        "dist and utils components are hidden by the components of acme",
    )


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


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("cli:run", "every torchx command fails"),
        ("component:x", "every torchx run fails"),
        ("slurm", "every torchx command that reads [slurm] fails"),
    ],
)
def test_a_percent_is_named_with_its_place(section: str, said: str, tmp_path: Path) -> None:
    (found,) = configs(tmp_path, project=f"[{section}]\nformat = %H\nfine = 1\n")
    check(found, "problem", f"the value of format in [{section}] holds a '%', so {said}")


def test_the_variable_names_the_only_file(tmp_path: Path) -> None:
    (tmp_path / ".torchxconfig").write_text("[cli:run]\nscheduler = %x\n")
    case = Case(environ={"TORCHXCONFIG": str(tmp_path / "other")}, folder=tmp_path, home=tmp_path)
    assert config_files(case) == [tmp_path / "other"]
    (found,) = config_findings(config_files(case), ALL)
    assert "other can't be read" in found.text
