"""A job whose lighthouse is killed again and again, once together with a group (R1, R8c): nobody else notices."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.journeys.jobs import SMALL, Job, gone, running, torchx_ddp
from tests.journeys.test_lighthouse_dies import (
    furthest,
    kill_lighthouse,
)
from torchft_x.launch.process import process_tree
from torchft_x.observe.processes import lighthouse_process
from torchft_x.timing import TIMING

pytestmark = [pytest.mark.timeout(400)]


def test_a_lighthouse_that_falls_silent_costs_a_moment(tmp_path: Path) -> None:
    """Stopped, as one whose host has lost its power: nothing is refused, and nothing answered. Grants last for a second."""
    run_dir = tmp_path / "run"
    args = ("--steps", "100000", "--pace", "0.05", *SMALL)
    with running(torchx_ddp(run_dir, *args, groups=3), tmp_path / "log", run_dir) as job:
        job.wait_until_training(3)
        for _ in range(2):
            goal = furthest(job) + 30  # all carry the same state by then
            job.wait_for(lambda: furthest(job) >= goal, 40, "some steps")  # noqa: B023
            lighthouse = lighthouse_process(run_dir)
            assert lighthouse is not None
            stopped = time.time()
            os.kill(lighthouse, signal.SIGSTOP)
            try:
                time.sleep(1.6 * TIMING.silence_alone)  # longer than any client waits for a word of it
            finally:
                os.kill(lighthouse, signal.SIGCONT)
            goal = furthest(job) + 30
            job.wait_for(lambda: furthest(job) >= goal, 40, "the groups to go on")  # noqa: B023
            events = [e for e in job.events() if float(e["t"]) > stopped - 1.0]
            for group in "012":
                times = [float(e["t"]) for e in events if e["event"] == "commit" and e.get("group") == group]
                pause = max(b - a for a, b in pairwise(times))
                assert pause < 0.5 * TIMING.silence_alone, f"group {group} stood still for {pause:.1f} s"
            assert not [e for e in events if e["event"] in ("drop", "member_lost")]


def test_it_ends_with_0_when_the_lighthouse_was_killed_after_a_group_had_finished(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(torchx_ddp(run_dir, "--steps", "300", *SMALL, groups=3), tmp_path / "log", run_dir) as job:
        job.wait_until_training(3)
        kill_lighthouse(job)
        assert job.wait(120) == 0, job.output()[-3000:]
        assert "All 3 groups finished." in job.output()
        gone(run_dir, 15)


def test_deaths_just_before_and_just_after_its_own_cost_no_lease(tmp_path: Path) -> None:
    """Group 1, the lighthouse, group 0: each end is told by a supervisor, to the old lighthouse or to the new one."""
    run_dir = tmp_path / "run"
    with running(torchx_ddp(run_dir, "--steps", "100000", *SMALL), tmp_path / "log", run_dir) as job:
        job.wait_until_training(2)
        first, second, lighthouse = job.worker("0"), job.worker("1"), lighthouse_process(run_dir)
        assert lighthouse is not None
        os.kill(second, signal.SIGKILL)
        job.wait_for(lambda: alone(job, "0"), 20, "the quorum of the other one")
        process_tree.send([lighthouse, first], signal.SIGKILL)
        job.wait_for(lambda: begun_again(job), 60, "a new lineage")
        assert "may still commit in it" not in job.output()
        (begun,) = [e for e in job.events() if e["event"] == "new_lineage"]
        # The copy in a supervisor's memory may be as new as anything that was told.
        whose = "because all groups that held them are gone: 0:" if begun["steps"] else "Its state was with 0:"
        assert whose in begun["reason"]


def alone(job: Job, group: str) -> bool:
    """Whether the newest quorum is of this group only."""
    quorums = [e["members"] for e in job.events() if e["event"] == "quorum" and e.get("role") == "lighthouse"]
    return [m.split(":")[0] for m in quorums[-1]] == [group]


def begun_again(job: Job) -> bool:
    """Whether both train since the new lineage."""
    events = job.events()
    began = next((float(e["t"]) for e in events if e["event"] == "new_lineage"), float("inf"))
    return {e.get("group") for e in events if e["event"] == "commit" and float(e["t"]) > began} == {"0", "1"}
