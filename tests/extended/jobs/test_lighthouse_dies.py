"""A job whose lighthouse is killed again and again, once together with a group (R1, R8c): nobody else notices."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.journeys.jobs import SMALL, running, torchx_ddp
from tests.journeys.test_lighthouse_dies import (
    furthest,
)
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
