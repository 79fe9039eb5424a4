"""Every component, on every scheduler, from every kind of install, on both TorchX lines; and what the command lists."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.extended.matrix.cells import check_listed, check_schedulers, render_kubernetes, render_slurm, run_here
from tests.extended.matrix.installs import WAYS, Workshop
from tests.unit.launch.lines import BOTH

COMPONENTS = ("ddp", "hsdp", "diloco", "lighthouse")
SCHEDULERS = {
    "local_cwd: run": run_here,
    "slurm: dry-run": render_slurm,
    "kubernetes: dry-run": render_kubernetes,
}
PLAIN, TYPICAL = "bare clone", "hsdp"
"""Every component is tried from one kind of install, and one component from every kind: nothing depends on both.
The lighthouse's run: tests/process/launch/test_components.py."""

CELLS = [
    (line, way, component, scheduler)
    for line in BOTH
    for way in WAYS
    for component in COMPONENTS
    for scheduler in SCHEDULERS
    if (way == PLAIN or component == TYPICAL) and (component, scheduler) != ("lighthouse", "local_cwd: run")
]


@pytest.mark.parametrize(("line", "way", "component", "scheduler"), CELLS)
def test_job(line: str, way: str, component: str, scheduler: str, workshop: Workshop, tmp_path: Path) -> None:
    SCHEDULERS[scheduler](workshop.installation(line, way), component, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("line", BOTH)
def test_command(line: str, way: str, workshop: Workshop) -> None:
    install = workshop.installation(line, way)
    check_listed(install, workshop.installation(line, PLAIN))
    check_schedulers(install)


def other_pythons() -> list[str]:
    """Return interpreters of the other Python versions on this machine. A shim on PATH may lead nowhere, so PATH isn't
    asked."""
    found = []
    for version in ("3.10", "3.11", "3.12", "3.13"):
        if version != f"{sys.version_info[0]}.{sys.version_info[1]}":
            paths = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
            found += [str(path) for path in (Path(f"/usr/bin/python{version}"), *paths) if path.exists()][:1]
    return found


@pytest.mark.parametrize("line", BOTH)
@pytest.mark.parametrize("python", other_pythons())
def test_other_pythons(python: str, line: str, workshop: Workshop, tmp_path: Path) -> None:
    """With the base's packages, of which those that TorchX and the components need are of pure Python."""
    for component in COMPONENTS:
        render_slurm(workshop.installation(line, PLAIN, python), component, tmp_path)
