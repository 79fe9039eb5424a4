"""A real job under the supervisor: short stops, busy cores, stopped workers. How long the others stand still is printed,
and never asserted closer than needed to tell one rule from the other.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.journeys.hangs import burners, commits_of_others, lost, together_since
from tests.journeys.jobs import Job
from tests.journeys.test_gone import job  # noqa: F401
from tests.util import wait_for
from torchft_x.timing import TIMING

pytestmark = [pytest.mark.timeout(300)]

BURNING = 12.0
"""Seconds of busy cores: longer than any silence that is taken for death (10 s)."""


def trouble(job: Job, since: float) -> list[dict]:
    """Of the processes and the steps."""
    return [e for e in job.events() if e["t"] > since and e["event"] in ("exit", "drop")]


SHORT = 0.8 * TIMING.silence_stopped
"""Seconds of a stop that nobody minds."""


def stop_shortly(job: Job) -> float:
    """Stop a worker for a moment, and wait until all go on; for how long it was stopped."""
    worker = job.worker("1")
    stopped = time.time()
    os.kill(worker, signal.SIGSTOP)
    time.sleep(0.45 * TIMING.silence_stopped)
    os.kill(worker, signal.SIGCONT)
    since = time.time()
    wait_for(lambda: together_since(job, 3, since), 60, "all go on together")
    return since - stopped


def test_a_short_stop_harms_nobody(job: Job) -> None:
    for _ in range(5):
        began = time.time()
        if max(stop_shortly(job) for _ in range(3)) < SHORT:
            break  # else we were waiting for a core while it was stopped
    assert lost(job, began) == []
    assert trouble(job, began) == []


def test_busy_cores_kill_nobody(job: Job) -> None:
    cores = len(os.sched_getaffinity(0))
    began = time.time()
    with burners(niced=2 * cores, eager=2 * cores):
        time.sleep(BURNING)
    steps = len(commits_of_others(job, "", began)) // 3
    print(f"{steps} steps in {BURNING:g} s with {4 * cores} burners, load {os.getloadavg()[0]:.1f}")
    assert lost(job, began) == []
    assert steps > 0
    assert trouble(job, began) == []
