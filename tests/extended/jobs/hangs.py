"""Stop trainers (SIGSTOP) in the middle of a real job, and measure for how long the others stall."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tests.events import training_together
from tests.journeys.jobs import SMALL, TRIAL, Job, running, torchx_ddp
from tests.util import wait_for
from torchft_x.timing import TIMING

BURN = "while True: pass"
ENDLESS = ("--steps", "1000000", "--pace", "0.04", *SMALL)


@contextmanager
def burners(niced: int, eager: int) -> Iterator[None]:
    """Run processes that only use a core each: `niced` ones with the lowest priority, and `eager` ones."""
    commands = [["nice", "-n", "19", sys.executable, "-c", BURN]] * niced + [[sys.executable, "-c", BURN]] * eager
    processes = [subprocess.Popen(command) for command in commands]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def three_groups(folder: Path, groups: int = 3) -> Iterator[Job]:
    """Run a job with the defaults, which trains on entry."""
    run_dir = folder / "run"
    with running(torchx_ddp(run_dir, *ENDLESS, groups=groups, script=TRIAL), folder / "log", run_dir) as job:
        job.wait_until_training(groups, 120)
        yield job


def lost(job: Job, since: float = 0.0) -> list[str]:
    """Return the lighthouse's reasons for members lost after that time."""
    events = [e for e in job.events() if e["t"] > since and e.get("role") == "lighthouse"]
    return [e["reason"] for e in events if e["event"] == "member_lost"]


def commits_of_others(job: Job, group: str, since: float) -> list[float]:
    """Return the times of the other groups' commits after that time."""
    return sorted(e["t"] for e in job.events() if e["event"] == "commit" and e["group"] != group and e["t"] > since)


def together_since(job: Job, groups: int, since: float) -> bool:
    """Return whether all groups have committed in one quorum after that time."""
    return training_together([e for e in job.events() if e["t"] > since], groups)


def hang(job: Job, group: str, groups: int = 3, seconds: float = 2 * TIMING.silence_stopped) -> float:
    """Stop the group's worker for `seconds`. Return the longest time in which the others had no commit after that.

    All train together again on return.
    """
    pid = job.worker(group)
    stopped = time.time()
    os.kill(pid, signal.SIGSTOP)
    try:
        # Commits shortly after the stop were decided before it; the step after them needs all groups.
        wait_for(lambda: any(t > stopped + 0.5 for t in commits_of_others(job, group, stopped)), 60, "the others' step")
        time.sleep(max(0.0, stopped + seconds - time.time()))
    finally:
        os.kill(pid, signal.SIGCONT)
    since = time.time()
    times = [stopped, *commits_of_others(job, group, stopped)]
    wait_for(lambda: together_since(job, groups, since), 60, "all are together again")
    return max(b - a for a, b in pairwise(times))
