"""A real job under the supervisor: short stops, busy cores, stopped workers. How long the others stand still is printed,
and never asserted closer than needed to tell one rule from the other.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.hangs import burners, commits_of_others, hang, lost, three_groups, together_since
from tests.e2e.jobs import Job
from tests.util import wait_for
from torchft_x.timing import TIMING

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BURNING = 12.0
"""Seconds of busy cores: longer than any silence that is taken for death (10 s)."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """One for all: each test leaves it with its three groups together, and looks only at what happened since it began."""
    with three_groups(tmp_path_factory.mktemp("gone")) as job:
        yield job


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


def test_a_stopped_worker_is_not_waited_for_and_comes_back(job: Job) -> None:
    began = time.time()
    worker = job.worker("1")
    stall = hang(job, "1")
    print(f"the others stood still for {stall:.2f} s, load {os.getloadavg()[0]:.1f}")
    reasons = lost(job, began)
    assert reasons
    assert all("worker 0 is stopped" in reason for reason in reasons), reasons
    assert job.worker("1") == worker  # it was told, and came back
