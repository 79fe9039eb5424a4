"""A training thread that hangs in a supervised job, at the defaults: the others go on, and its group is started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.journeys.jobs import WARM, Job, running
from tests.started import BIN, ROOT

SCRIPT = str(ROOT / "tests/journeys/late.py")


def _job(run_dir: Path, *args: str, workers: int = 1) -> list[str]:
    command = [str(BIN / "torchx"), "run", "-s", "local_cwd", "./components.py:ddp", "--replicas", "2"]
    return [*command, "--workers_per_replica", str(workers), "--run_dir", str(run_dir), "--script", SCRIPT, "--", *args]


def _back(job: Job) -> bool:
    """Whether a second attempt of group 1 has committed."""
    return any(e["event"] == "commit" and e["group"] == "1" and e.get("attempt") == 1 for e in _trainers(job))


def _trainers(job: Job) -> list[dict[str, Any]]:
    return [e for e in job.events() if e.get("role") == "trainer"]


@pytest.mark.timeout(300)
def test_a_hung_group_is_left_out_and_started_again(tmp_path: Path) -> None:
    run_dir, ranks = tmp_path / "run", 2
    with running(_job(run_dir, "loader", workers=ranks), tmp_path / "log", run_dir, **WARM) as job:
        job.wait_until_training(2, 120)
        job.wait_for(lambda: _back(job), 120, "group 1 is back in a second attempt")
        events = job.events()
        assert [e for e in _trainers(job) if e["event"] == "drop" and e["group"] == "0"] == []
        assert [e["attempt"] for e in _trainers(job) if e["event"] == "joined" and e["group"] == "0"] == [0] * ranks
        (hung,) = [e["reason"] for e in events if e["event"] == "exit"]
        assert hung.startswith("hung: rank 1 stands still in")
        assert "late.py" in hung
        folder = next(f for f in (run_dir / "dumps").iterdir() if "-hung-" in f.name)
        assert (folder / "1-1.stack.txt").exists()
