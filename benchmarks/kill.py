"""kill -9 or SIGSTOP of one group's trainer: the survivors' time until they train on, and the batches they lose."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass

from benchmarks.bench import Bench, Measured, interleave
from benchmarks.job import Job
from benchmarks.libraries import Library
from benchmarks.processes import GaveUp, wait_for
from benchmarks.record import goes_on, thrown_away
from benchmarks.stats import Goal, Sample

BOUND = 30.0  # seconds to wait for the survivors
HANG_BOUND = 90.0  # seconds; the peer needs 60
AFTERWARDS = 0.5  # seconds to watch on: a survivor may lose a step after its first commit


@dataclass(frozen=True)
class Stall:
    """Cost of a death to the survivors."""

    seconds: Sample
    """Time until the last survivor committed a step without the victim. None: never, or it died."""
    thrown: int
    """Batches that survivors drew and never committed."""


def measure(job: Job, t: float, bound: float) -> Stall:
    """Wait for at most `bound` seconds, and return the cost of the last group's death at `t` (monotonic seconds)."""
    survivors = [job.attempt(name) for name in job.names[:-1]]

    def all_go_on() -> list[float]:
        job.records.update()
        if any(job.gone(x.group) for x in survivors):
            raise GaveUp("a survivor died")
        times = [goes_on(x, t, len(job.names)) for x in survivors]
        return [x for x in times if x is not None] if None not in times else []

    try:
        last: float | None = max(wait_for(all_go_on, bound, "the survivors train on"))
        time.sleep(AFTERWARDS)
    except GaveUp:
        last = None
    end = time.monotonic()
    job.records.update()
    return Stall(None if last is None else last - t, sum(thrown_away(x, t, end) for x in survivors))


def kill_once(library: Library, groups: int, rng: random.Random) -> Stall:
    with Job(library, groups) as job:
        job.wait_together()
        time.sleep(rng.uniform(0.1, 0.5))  # anywhere in a step
        return measure(job, job.kill(job.names[-1]), BOUND)


def run_kill(bench: Bench) -> list[Measured]:
    """Kill one of 2 and of 3 groups. The trainers run without a launcher, so that only sockets report the death."""
    rows = []
    for groups in (2,) if bench.quick else (2, 3):
        rng = random.Random(groups)
        pairs = interleave(bench, lambda library, groups=groups, rng=rng: kill_once(library, groups, rng))
        note = "; ".join(pairs.failures)
        name = f"kill -9 one of {groups} groups -> "
        rows += [
            pairs.fill(
                Measured(f"kill.{groups}", name + "survivors train on", "s", goal=Goal(0.10), note=note),
                lambda x: x.seconds,
                bench,
            ),
            pairs.fill(
                Measured(
                    f"kill.{groups}.99", name + "0.25 s in 99 of 100", "s", goal=Goal(0.25, of="share", needs=100)
                ),
                lambda x: x.seconds,
                bench,
            ),
            pairs.fill(
                Measured(
                    f"kill.{groups}.thrown",
                    name + "gradients thrown away",
                    "batches",
                    goal=Goal(0, of="total", needs=100),
                ),
                lambda x: x.thrown,
                bench,
            ),
        ]
    return rows


def hang_once(library: Library, groups: int) -> Stall:
    """Stop a trainer that computes while the others wait for it in the collective of the same step."""
    slow = str(groups - 1)
    with Job(library, groups, launched=True, trainer=("--slow-group", slow)) as job:
        job.wait_together(steps=5)
        victim = job.attempt(slow)
        drawn = len(victim.drawn)
        wait_for(lambda: (job.records.update(), len(victim.drawn))[1] > drawn, 30.0, "the next step", poll=0.001)
        time.sleep(0.1)  # the victim's steps take 0.2 s: the others are in the reduction by now, and it is not
        return measure(job, job.kill(slow, signal.SIGSTOP), HANG_BOUND)


def run_hang(bench: Bench) -> list[Measured]:
    """Stop one of 2 groups, each under its library's launcher, since ours detects a stopped process there."""
    pairs = interleave(bench, lambda library: hang_once(library, 2))
    name = "SIGSTOP in a collective, 2 groups -> "
    note = "; ".join([f"the peer takes 60 s: {bench.peer_pairs} pairs", *pairs.failures])
    row = Measured("hang.2", name + "the other trains on", "s", goal=Goal(2.0), note=note)
    thrown = Measured("hang.2.thrown", name + "gradients thrown away", "batches")
    return [pairs.fill(row, lambda x: x.seconds, bench), pairs.fill(thrown, lambda x: x.thrown, bench)]
