"""Goodput of four groups under Poisson kills: batches committed, as a share of those that were possible."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.bench import Bench, Measured, interleave
from benchmarks.job import Job
from benchmarks.libraries import Library
from benchmarks.record import AttemptRecord
from benchmarks.stats import Goal

GROUPS = 4
FEW = 2  # number of groups in a smoke run
SECONDS = 60.0
QUIET = 10.0  # seconds without a kill at the start, which give the groups' usual rate
PACE = "0.05"  # seconds of a step: four groups must not compete for the machine, or a death would help the others
GOALS = {15.0: 0.98, 5.0: 0.95}  # mean seconds between kills: least normalised goodput


@dataclass(frozen=True)
class Goodput:
    """Committed batches as a share of the possible ones."""

    normalised: float
    """Share of the possible batches, of which those between a group's kill and its next commit don't count."""
    raw: float
    """Share of the batches that were possible without kills."""
    kills: int
    timeline: dict[str, Any] = field(repr=False)


def schedule(mtbf: float, seconds: float, seed: int, groups: int = GROUPS) -> list[tuple[float, str]]:
    """Return (seconds, group) of each kill; equal seeds, as for both libraries of a pair, give equal kills."""
    rng, t, out = random.Random(seed), 0.0, []
    while (t := t + rng.expovariate(1 / mtbf)) < seconds:
        out.append((t, str(rng.randrange(groups))))
    return out


def goodput_once(library: Library, mtbf: float, seconds: float, seed: int, groups: int) -> Goodput:
    with Job(library, groups, launched=True, trainer=("--pace", PACE)) as job:
        job.wait_together()
        quiet = time.monotonic()
        time.sleep(min(QUIET, seconds / 3))
        begin = time.monotonic()
        kills = []
        for after, group in schedule(mtbf, seconds, seed, groups):
            time.sleep(max(0.0, begin + after - time.monotonic()))
            try:
                kills.append((job.kill(group), group))
            except ProcessLookupError:  # the group is still dead from an earlier kill
                pass
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        end = time.monotonic()
        return account(job.records.update(), kills, quiet, begin, end, groups)


def account(
    attempts: Sequence[AttemptRecord],
    kills: Sequence[tuple[float, str]],
    quiet: float,
    begin: float,
    end: float,
    groups: int = GROUPS,
) -> Goodput:
    """Return the goodput between `begin` and `end`, against the groups' rate between `quiet` and `begin`."""
    commits = [(c.t, attempt.group) for attempt in attempts for c in attempt.commits if c.mine]
    rate = sum(quiet <= t < begin for t, _ in commits) / (begin - quiet)  # batches a second, all groups
    done = sum(begin <= t < end for t, _ in commits)
    dead = sum(_dead(commits, group, kills, begin, end) for group in {g for _, g in commits})
    possible = rate * (end - begin)
    alive = max(1e-9, possible - rate / groups * dead)
    seconds = range(int(end - begin))
    timeline = {
        "kills": [t - begin for t, _ in kills],
        "rate": [sum(begin + s <= t < begin + s + 1 for t, _ in commits) for s in seconds],
        "full": rate,
    }
    return Goodput(done / alive, done / possible, len(kills), timeline)


def _dead(
    commits: Sequence[tuple[float, str]], group: str, kills: Sequence[tuple[float, str]], begin: float, end: float
) -> float:
    """Return the seconds between kills of the group and its next commits, summed up between `begin` and `end`."""
    own = sorted(t for t, g in commits if g == group)
    total, until = 0.0, begin
    for killed in sorted(t for t, g in kills if g == group):
        if killed < until:
            continue  # the group had not come back from the kill before
        until = next((t for t in own if t > killed), end)
        total += min(until, end) - killed
    return total


def run_goodput(bench: Bench) -> list[Measured]:
    seconds = float(bench.settings.get("seconds") or (6.0 if bench.quick else SECONDS))
    groups = FEW if bench.quick else GROUPS
    rows = []
    for mtbf in bench.settings.get("mtbf") or ([min(GOALS)] if bench.quick else GOALS):
        runs: dict[str, int] = {}

        def once(library: Library, mtbf: float = mtbf, runs: dict[str, int] = runs) -> Goodput:
            seed = runs.get(library.key, 0)  # both runs of a pair use one seed, also if one had to be tried again
            result = goodput_once(library, mtbf, seconds, seed, groups)
            runs[library.key] = seed + 1
            return result

        pairs = interleave(bench, once)
        name = f"goodput, {groups} groups, a kill each {mtbf:g} s: "
        kills = sum(x.kills for both in pairs.got.values() for x in both)
        note = "; ".join([f"runs of {seconds:g} s, {kills} kills in all", *pairs.failures])
        share = Measured(
            f"goodput.{mtbf:g}", name + "capacity-normalised", "%", goal=Goal(100 * GOALS[mtbf], at_most=False)
        )
        raw = Measured(f"goodput.{mtbf:g}.raw", name + "raw", "%", note=note)
        share.higher_is_better = raw.higher_is_better = True
        share.timeline = {"mtbf": mtbf} | {key: got[0].timeline for key, got in pairs.got.items() if got}
        rows += [pairs.fill(share, lambda x: 100 * x.normalised, bench), pairs.fill(raw, lambda x: 100 * x.raw, bench)]
    return rows
