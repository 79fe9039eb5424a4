"""A job whose lighthouse is killed, alone and together with a group (R1, R8c): nobody else notices.

At a lighthouse that is killed twice, without training: tests/process/launch/supervisor/test_lighthouse.py.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.journeys.jobs import SMALL, Job, running, torchx_ddp
from tests.started import gone
from tests.util import wait_for
from torchft_x.launch.process import process_tree
from torchft_x.observe.processes import lighthouse_process

pytestmark = [pytest.mark.timeout(400)]

SERVES = "Lighthouse listening on"


def furthest(job: Job) -> int:
    """The job's newest step."""
    return max((int(e["step"]) + 1 for e in job.events() if e["event"] == "commit"), default=0)


def kill_lighthouse(job: Job, *others: int) -> None:
    """SIGKILL for it, and for others in the same moment; returns when another one serves."""
    before = wait_for(lambda: lighthouse_process(job.run_dir), 10, "the lighthouse's process")
    served = job.output().count(SERVES)
    process_tree.send([before, *others], signal.SIGKILL)
    job.wait_for(lambda: job.output().count(SERVES) > served, 30, "another lighthouse")


def test_a_lighthouse_that_is_killed_costs_nobody_a_step(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(torchx_ddp(run_dir, "--steps", "100000", *SMALL, groups=3), tmp_path / "log", run_dir) as job:
        job.wait_until_training(3)
        kill_lighthouse(job)
        goal = furthest(job) + 30
        job.wait_for(lambda: furthest(job) >= goal, 40, "the groups to go on")
        attempts = Counter(e["group"] for e in job.events() if e.get("role") == "supervisor" and e["event"] == "start")
        assert set(attempts.values()) == {1}, "a trainer has died"
        kill_lighthouse(job, job.worker("2"))
        later = furthest(job) + 30
        job.wait_for(lambda: furthest(job) >= later, 40, "the two that are left to go on")
        job.wait_until_training(3)
        check(job)
        os.kill(job.process.pid, signal.SIGINT)
        gone(run_dir, 15)
        assert job.wait(10) != 0


def check(job: Job) -> None:
    """Steps without a gap, ids that only grow, and nobody was started again but the group that was killed."""
    events = job.events()
    attempts = Counter(e["group"] for e in events if e.get("role") == "supervisor" and e["event"] == "start")
    assert attempts == {"0": 1, "1": 1, "2": 2}
    for group in ("0", "1"):
        steps = [int(e["step"]) for e in events if e["event"] == "commit" and e.get("group") == group]
        assert steps == list(range(steps[0], steps[0] + len(steps))), f"group {group} has missed a step"
    ids = [int(e["quorum"]) for e in events if e["event"] == "quorum" and e.get("role") == "lighthouse"]
    assert ids == sorted(set(ids))
    assert sum(e["event"] == "restart" and e.get("role") == "lighthouse" for e in events) == 2
