"""A real job of which a part is slow or silent for a while: a worker, all cores, the training thread, the lighthouse."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.events import commits
from tests.extended.jobs.hangs import burners, commits_of_others, hang, lost, three_groups, together_since
from tests.journeys.jobs import SMALL, TRIAL, Job, running, torchx_ddp
from tests.journeys.test_late import _job as late_job
from tests.journeys.test_lighthouse_dies import furthest
from tests.util import wait_for
from torchft_x.observe.processes import lighthouse_process
from torchft_x.timing import TIMING

pytestmark = [pytest.mark.timeout(400)]

BURNING = 12.0
"""Seconds of busy cores: longer than any silence that is taken for death (10 s)."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """One for all: each test leaves it with its three groups together, and looks only at what happened since it began."""
    with three_groups(tmp_path_factory.mktemp("gone")) as job:
        yield job


def test_a_stopped_worker_is_not_waited_for_and_comes_back(job: Job) -> None:
    """At the defaults, of three groups; of two: tests/journeys/test_kills.py."""
    began = time.time()
    worker = job.worker("1")
    stall = hang(job, "1")
    print(f"the others stood still for {stall:.2f} s, load {os.getloadavg()[0]:.1f}")
    reasons = lost(job, began)
    assert reasons
    assert all("worker 0 is stopped" in reason for reason in reasons), reasons
    assert job.worker("1") == worker


def trouble(job: Job, since: float) -> list[dict]:
    """Return the ends of workers and the dropped steps since then."""
    return [e for e in job.events() if e["t"] > since and e["event"] in ("exit", "drop")]


SHORT = 0.8 * TIMING.silence_stopped
"""Seconds of a stop that nobody minds."""


def stop_shortly(job: Job) -> float:
    """Stop a worker for a moment and wait until all go on; return for how long."""
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


def test_a_thread_that_computes_between_two_steps_is_left_out_and_not_ended(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(late_job(run_dir, "busy", "30"), tmp_path / "log", run_dir) as job:

        def last(group: str) -> int:
            return max((e["step"] for e in commits(job.events(), group=group)), default=0)

        job.wait_until_training(2, 120)
        job.wait_for(lambda: last("0") > last("1") + 30, 120, "group 0 has gone on alone")
        there = last("0")
        job.wait_for(lambda: last("1") > there, 120, "group 1 is back")
        assert [e["event"] for e in job.events() if e["event"] in ("exit", "restart")] == []


def test_a_lighthouse_that_falls_silent_costs_a_moment(tmp_path: Path) -> None:
    """Stop it, as a host that has lost its power: nothing is refused, and nothing answered. Grants last for a second."""
    run_dir = tmp_path / "run"
    args = ("--steps", "100000", "--pace", "0.05", *SMALL)
    with running(torchx_ddp(run_dir, *args, groups=3, script=TRIAL), tmp_path / "log", run_dir) as job:
        job.wait_until_training(3)
        goal = furthest(job) + 30  # all carry the same state by then
        job.wait_for(lambda: furthest(job) >= goal, 40, "some steps")
        lighthouse = lighthouse_process(run_dir)
        assert lighthouse is not None
        stopped = time.time()
        os.kill(lighthouse, signal.SIGSTOP)
        try:
            time.sleep(1.6 * TIMING.silence_alone)  # longer than any client waits for a word of it
        finally:
            os.kill(lighthouse, signal.SIGCONT)
        then = furthest(job) + 30
        job.wait_for(lambda: furthest(job) >= then, 40, "the groups to go on")
        events = [e for e in job.events() if float(e["t"]) > stopped - 1.0]
        for group in "012":
            times = [float(e["t"]) for e in commits(events, group=group)]
            pause = max(b - a for a, b in pairwise(times))
            assert pause < 0.5 * TIMING.silence_alone, f"group {group} stood still for {pause:.1f} s"
        assert not [e for e in events if e["event"] in ("drop", "member_lost")]
