"""Real jobs under the supervisor: stopped workers, short stops, busy cores. How long the others stand still is printed,
and never asserted closer than needed to tell one rule from the other.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.hangs import burners, commits_of_others, hang, lost, three_groups, together_since
from tests.util import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BURNING = 20.0
"""Seconds of busy cores."""


def test_a_stopped_worker_is_not_waited_for_and_comes_back(tmp_path: Path) -> None:
    with three_groups(tmp_path) as job:
        worker = job.worker("1")
        stall = hang(job, "1")
        print(f"the others stood still for {stall:.2f} s, load {os.getloadavg()[0]:.1f}")
        reasons = lost(job)
        assert reasons
        assert all("worker 0 is stopped" in reason for reason in reasons), reasons
        assert job.worker("1") == worker  # it was told, and came back


def test_a_short_stop_harms_nobody(tmp_path: Path) -> None:
    with three_groups(tmp_path) as job:
        for _ in range(3):
            worker = job.worker("1")
            os.kill(worker, signal.SIGSTOP)
            time.sleep(0.7)
            os.kill(worker, signal.SIGCONT)
            since = time.time()
            wait_for(lambda since=since: together_since(job, 3, since), 30, "all go on together")
        assert lost(job) == []
        assert not [e for e in job.events() if e["event"] == "drop"]


def test_busy_cores_kill_nobody(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    with three_groups(tmp_path) as job:
        since = time.time()
        with burners(niced=2 * cores, eager=2 * cores):
            time.sleep(BURNING)
        steps = len(commits_of_others(job, "", since)) // 3
        print(f"{steps} steps in {BURNING:g} s with {4 * cores} burners, load {os.getloadavg()[0]:.1f}")
        assert lost(job) == []
        assert steps > 10
        assert not [e for e in job.events() if e["event"] in ("exit", "drop")]
