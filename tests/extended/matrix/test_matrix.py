"""Every component, on every scheduler, from every kind of install, on both TorchX lines; and what the command lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extended.matrix.cells import (
    check_listed,
    check_schedulers,
    listed,
    render_here,
    render_kubernetes,
    render_slurm,
    run_here,
)
from tests.extended.matrix.places import WAYS, Workshop, label, without_network
from tests.extended.matrix.pythons import found, missing
from tests.extended.matrix.table import Results, Table
from tests.unit.launch.lines import BOTH

COMPONENTS = ("ddp", "hsdp", "diloco", "lighthouse")
SCHEDULERS = {
    "local_cwd: run": run_here,
    "slurm: dry-run": render_slurm,
    "kubernetes: dry-run": render_kubernetes,
}
PLAIN, TYPICAL = "bare clone", "hsdp"
"""Every component is tried from one kind of install, and one component from every kind: nothing depends on both."""

JOBS = Table("Jobs of two groups", ("TorchX", "torchft_x", "component"), tuple(SCHEDULERS))
COMMAND = Table("The command", ("TorchX", "torchft_x"), ("torchx builtins", "schedulers"))
PYTHONS = Table("Dry-runs of all components under other Pythons", ("Python", "TorchX"), ("local_cwd", "slurm"))

CELLS = [
    (line, way, component, scheduler)
    for line in BOTH
    for way in WAYS
    for component in COMPONENTS
    for scheduler in SCHEDULERS
    if way == PLAIN or component == TYPICAL
]


@pytest.mark.parametrize(("line", "way", "component", "scheduler"), CELLS)
def test_job(
    line: str, way: str, component: str, scheduler: str, workshop: Workshop, results: Results, tmp_path: Path
) -> None:
    how = "without any network interface" if without_network() else "with proxies that lead nowhere"
    results.note(f"Dry-runs were made {how}, and without the tools or settings of any cluster.")
    with results.cell(JOBS, (label(line), way, component), scheduler) as watch:
        place = workshop.place(line, way)
        watch.start()
        SCHEDULERS[scheduler](place, component, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("line", BOTH)
def test_command(line: str, way: str, workshop: Workshop, results: Results) -> None:
    with results.cell(COMMAND, (label(line), way), "torchx builtins") as watch:
        place = workshop.place(line, way)
        watch.start()
        check_listed(place, listed(workshop.place(line, "bare clone")))
    with results.cell(COMMAND, (label(line), way), "schedulers"):
        check_schedulers(place)


@pytest.mark.parametrize("line", BOTH)
@pytest.mark.parametrize("version", found())
def test_other_pythons(version: str, line: str, workshop: Workshop, results: Results, tmp_path: Path) -> None:
    """With the base's packages, of which those that TorchX and the components need are of pure Python."""
    if missing():
        results.note(f"No interpreter on this machine for Python {', '.join(missing())}.")
    with results.cell(PYTHONS, (version, label(line)), "local_cwd") as watch:
        place = workshop.place(line, "bare clone", python=found()[version])
        watch.start()
        for component in COMPONENTS:
            render_here(place, component)
    with results.cell(PYTHONS, (version, label(line)), "slurm"):
        for component in COMPONENTS:
            render_slurm(place, component, tmp_path)
