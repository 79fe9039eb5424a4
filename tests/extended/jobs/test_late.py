"""A training thread that hangs in a supervised job, at the defaults: the others go on, and its group is started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journeys.jobs import Job, running
from tests.journeys.test_late import (
    _job,
    _trainers,
)


@pytest.mark.timeout(200)
def test_who_computes_between_two_steps_is_left_out_and_not_ended(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(_job(run_dir, "busy", "30"), tmp_path / "log", run_dir) as job:
        job.wait_until_training(2, 120)
        job.wait_for(lambda: _last(job, "0") > _last(job, "1") + 30, 120, "group 0 has gone on alone")
        there = _last(job, "0")
        job.wait_for(lambda: _last(job, "1") > there, 120, "group 1 is back")
        assert [e["event"] for e in job.events() if e["event"] in ("exit", "restart")] == []


def _last(job: Job, group: str) -> int:
    return max((e["step"] for e in _trainers(job) if e["event"] == "commit" and e["group"] == group), default=0)
