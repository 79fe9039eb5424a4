"""Stall, lost steps and deaths when the lighthouse is killed and restarted at the same address."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.bench import Bench, Measured, interleave
from benchmarks.job import Job
from benchmarks.libraries import Library
from benchmarks.processes import GaveUp, wait_for
from benchmarks.record import longest_gap, thrown_away
from benchmarks.stats import Goal, Sample

AWAY = 3.0  # seconds without a lighthouse
BOUND = 90.0  # the peer's trainers die after 60
GROUPS = 2


@dataclass(frozen=True)
class Outage:
    """Cost of one outage."""

    stall: Sample
    """Seconds by which the longest time between two commits exceeds that before the kill. None: a trainer died."""
    lost: int
    """Number of batches that were drawn and never committed."""
    died: int
    """Number of trainers that ended."""


def outage_once(library: Library, away: float) -> Outage:
    with Job(library, GROUPS) as job:
        job.wait_together()
        quiet = time.monotonic()
        time.sleep(away + 1.0)
        assert job.lighthouse is not None
        killed = job.lighthouse.kill()
        time.sleep(away)
        job.start_lighthouse()
        back = time.monotonic()

        def over() -> bool:
            attempts = {x.group: x for x in job.records.update()}
            died = all(job.gone(name) for name in job.names)
            return died or all(sum(c.t > back for c in x.commits) >= 30 for x in attempts.values())

        try:
            wait_for(over, BOUND, "the groups train on")
            if not all(job.gone(name) for name in job.names):
                time.sleep(1.0)
        except GaveUp:
            pass  # the stall shows it
        end = time.monotonic()
        attempts = job.attempts()
        died = sum(job.gone(name) for name in job.names)
        times = [[c.t for c in x.commits] for x in attempts]
        before = max(longest_gap(x, quiet, killed) for x in times)
        stall = max(longest_gap(x, killed, end) for x in times) - before
        return Outage(None if died else max(0.0, stall), sum(thrown_away(x, killed, end) for x in attempts), died)


def run_outage(bench: Bench) -> list[Measured]:
    away = float(bench.settings.get("away") or AWAY)
    pairs = interleave(bench, lambda library: outage_once(library, away))
    name = f"lighthouse killed, back after {away:g} s, {GROUPS} groups: "
    note = "; ".join([f"the peer's trainers take 60 s to die: {bench.peer_pairs} pairs", *pairs.failures])
    rows = [
        (Measured("outage.stall", name + "longest stall", "s", goal=Goal(0.05), note=note), lambda x: x.stall),
        (Measured("outage.lost", name + "steps lost", "steps", goal=Goal(0, of="total")), lambda x: x.lost),
        (Measured("outage.died", name + "trainers died", "of 2", goal=Goal(0, of="total")), lambda x: x.died),
    ]
    return [pairs.fill(row, read, bench) for row, read in rows]
