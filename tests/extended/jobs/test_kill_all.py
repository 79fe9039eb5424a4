"""kill -9 of all workers of all groups at once: the supervisors hold the state, and the job goes on from it (decision 51)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extended.jobs.test_nodes import torchx_nodes
from tests.journeys.jobs import BIN, SMALL, WARM
from tests.journeys.test_kill_all import (
    killed,
    killed_twice,
)
from torchft_x.observe.events import read_events

pytestmark = [pytest.mark.timeout(300)]


def test_groups_over_two_nodes(tmp_path: Path) -> None:
    """Each node's supervisor holds what its own worker has copied, and forks its worker's next life."""
    run_dir = tmp_path / "run"
    args = ("--steps", "100000", "--pace", "0.04", "--dump-params", str(tmp_path / "dumps"), *SMALL)
    killed(torchx_nodes(run_dir, *args), tmp_path, run_dir, ranks=2, lives=1, **WARM)
    assert any(e["warm"] for e in read_events(run_dir) if e["event"] == "start" and e["role"] == "supervisor")


def test_groups_that_train_apart(tmp_path: Path) -> None:
    """They go on from an exchange."""
    run_dir = tmp_path / "run"
    command = [str(BIN / "torchx"), "run", "-s", "local_cwd", "./components.py:diloco", "--sync_steps", "4"]
    command += ["--run_dir", str(run_dir), "--"]
    command += ["--steps", "100000", "--pace", "0.02", "--dump-params", str(tmp_path / "dumps"), *SMALL]
    killed_twice(command, tmp_path, run_dir, ranks=1)
