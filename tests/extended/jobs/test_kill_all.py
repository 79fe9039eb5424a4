"""kill -9 of all workers of all groups at once: the supervisors hold the state, and the job goes on from it (decision 51)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extended.jobs.test_nodes import torchx_nodes
from tests.journeys.jobs import BIN, SMALL, WARM, running, torchx_ddp
from tests.journeys.test_kill_all import (
    after,
    kill_all,
    killed,
    killed_twice,
    last_step,
)
from torchft_x import env

pytestmark = [pytest.mark.timeout(300)]


def test_two_groups_of_one(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    args = ("--steps", "100000", "--pace", "0.04", "--dump-params", str(tmp_path / "dumps"), *SMALL)
    killed_twice(torchx_ddp(run_dir, *args), tmp_path, run_dir, ranks=1)


def test_groups_over_two_nodes(tmp_path: Path) -> None:
    """Each node's supervisor holds what its own worker has copied. Their lives begin cold."""
    run_dir = tmp_path / "run"
    args = ("--steps", "100000", "--pace", "0.04", "--dump-params", str(tmp_path / "dumps"), *SMALL)
    killed(torchx_nodes(run_dir, *args), tmp_path, run_dir, ranks=2, lives=1)


def test_groups_that_train_apart(tmp_path: Path) -> None:
    """They go on from an exchange."""
    run_dir = tmp_path / "run"
    command = [str(BIN / "torchx"), "run", "-s", "local_cwd", "./components.py:diloco", "--sync_steps", "4"]
    command += ["--run_dir", str(run_dir), "--"]
    command += ["--steps", "100000", "--pace", "0.02", "--dump-params", str(tmp_path / "dumps"), *SMALL]
    killed_twice(command, tmp_path, run_dir, ranks=1)


def test_without_memory_they_begin_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = torchx_ddp(run_dir, "--steps", "100000", "--pace", "0.04", *SMALL)
    with running(command, tmp_path / "log", run_dir, **WARM, **{env.MEMORY: "0"}) as job:
        job.wait_until_training(2, 120)
        job.wait_for(lambda: last_step(job) > 50, 60, "50 steps")
        began = kill_all(job)
        job.wait_for(lambda: after(job, began, "commit"), 90, "the next commit")
        assert after(job, began, "commit")[0]["step"] == 0
        assert not [e for e in job.events() if e["event"] in ("held", "restored")]
