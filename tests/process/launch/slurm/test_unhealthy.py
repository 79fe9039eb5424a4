"""A group of slurm_ft whose health command has failed: what its batch script does, and what is asked of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.launch.slurm.test_build import run
from tests.process.launch.slurm.test_lost_answers import SBATCH, SCRIPT, Cluster, cluster
from tests.unit.launch.slurm.made import directives, spec
from torchft_x.__main__ import main
from torchft_x.launch.job.build import ft_app
from torchft_x.launch.job.health import report_unhealthy
from torchft_x.launch.plugin.slurm import create_scheduler
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.build import build
from torchft_x.launch.slurm.controller import Controller
from torchft_x.launch.slurm.rules.manifest import Manifest
from torchft_x.launch.slurm.script import render
from torchft_x.launch.slurm.submit import launch

__all__ = ["cluster"]  # a fixture

WHY = "the health command failed (exit code 3) on host-1: GPU 3 is lost"
REFUSES = "echo 'sbatch: error: Requested node configuration is not available' >&2; exit 1"


@pytest.mark.parametrize(
    ("bad", "submitted", "code"),
    [(True, "true", 137), (True, "false", 1), (False, "true", 0)],
    ids=["submitted anew", "refused", "another start's node"],
)
def test_the_batch_script_submits_the_group_anew(tmp_path: Path, bad: bool, submitted: str, code: int) -> None:
    """It does not start the step again in place, though srun may have killed the other nodes' tasks."""
    run_dir, asked, python = tmp_path / "run", tmp_path / "asked", tmp_path / "python"
    (run_dir / "slurm/logs").mkdir(parents=True)
    report_unhealthy(run_dir / "slurm", "n3", "3_0-r0", WHY)
    python.write_text(f'#!/bin/sh\nshift 2; echo "$@" >> {asked}; {submitted}\n')
    python.chmod(0o755)
    command = ("prog", "--health", "check", "--", "train.py")
    text = render(spec(command=command, run_dir=str(run_dir), folder=str(tmp_path), python=str(python)))
    where = run_dir / "slurm/unhealthy"
    srun = f'[ -e {where}/n1 ] && exit 0; echo "$fence_name {WHY}" > {where}/n1; exit 137'
    done = run(text, tmp_path, srun if bad else "exit 0", 0)
    assert done.returncode == code, done.stdout + done.stderr
    assert asked.exists() is bad
    if bad:
        assert asked.read_text() == f"slurm-again {run_dir} trainer 0 4_0 unhealthy\n"


def submitted(tmp_path: Path) -> Manifest:
    run_dir = str(tmp_path / "run")
    app = ft_app(str(SCRIPT), replicas=2, run_dir=run_dir, health="check")
    return launch(build(app, {"exclude": "n9"}, app_id="ddp-x", run_dir=run_dir), Controller())


def test_the_node_is_excluded_for_all_groups_and_torchx_status_says_why(cluster: Cluster, tmp_path: Path) -> None:
    manifest = submitted(tmp_path)
    report_unhealthy(store.folder(manifest.run_dir), "n1", "3_1-r0", WHY)
    report_unhealthy(store.folder(manifest.run_dir), "n1", "3_0-r0", "another group has the same node")
    cluster.command("sbatch", f"tee $D/text | (\n{SBATCH}\n)")
    for number, job in ((1, "3_1"), (0, "3_0"), (0, "3_0")):
        assert main(["slurm-again", manifest.run_dir, "trainer", str(number), job, "unhealthy"]) == 0
        assert "--exclude=n9,n1" in directives((cluster.folder / "text").read_text())
    assert store.read(manifest.run_dir).jobs == ("5_0", "4_1")  # the second call for group 0 was too late
    found = create_scheduler("here").describe("ddp-x")
    assert found is not None
    assert f"{WHY}." in found.msg


def test_when_no_host_is_left_the_group_is_lost_with_a_sentence(cluster: Cluster, tmp_path: Path) -> None:
    manifest = submitted(tmp_path)
    report_unhealthy(store.folder(manifest.run_dir), "n1", "3_1-r0", WHY)
    cluster.command("sbatch", REFUSES)
    assert main(["slurm-again", manifest.run_dir, "trainer", "1", "3_1", "unhealthy"]) == 1
    refused = "Slurm's sbatch failed: sbatch: error: Requested node configuration is not available"
    assert store.lost_groups(manifest.run_dir) == {"1": f"no host is left for it ({refused}); {WHY}"}
    assert store.read(manifest.run_dir) == manifest
