"""One of three groups hangs or is slow: what does it cost the others, and when is it back?"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.bench import Bench, Measured, interleave
from benchmarks.job import Job
from benchmarks.lateness import FOR_EVER, KINDS, Kind
from benchmarks.libraries import Library
from benchmarks.processes import GaveUp, wait_for
from benchmarks.record import Life, goes_on, longest_gap, thrown_away
from benchmarks.stats import Goal, Sample

GROUPS = 3
LATE = "1"
PACE = 0.1  # seconds of a step
BOUND = 150.0  # seconds to watch: the peer's others end after 60 + 60
SLOW = 40.0  # seconds to watch a group that is always slow
AFTERWARDS = 2.0  # seconds to watch on when it is back


@dataclass(frozen=True)
class Late:
    longest: Sample
    """Seconds, the others' longest time between two commits. None: one of them ended."""
    back: Sample
    """Seconds until the group had committed with the others again. None: not within `BOUND`."""
    ended: int
    """Processes of the other groups."""
    thrown: int
    """Batches that the others drew and never committed."""
    pace: float
    """The others' commits in a second, as a share of what it was before."""


def late_once(library: Library, name: str) -> Late:
    kind = KINDS[name]
    trainer = ("--late", name, "--pace", str(PACE))
    with Job(library, GROUPS, launched=True, trainer=trainer, ranks=kind.ranks) as job:
        job.wait_together(steps=15)
        late = wait_for(lambda: _late(job), 60.0, "the group is late")
        first = [x for x in job.lives() if x.group != LATE]
        try:
            wait_for(lambda: _over(job, kind, first, late), BOUND, "the group is back", poll=0.1)
            time.sleep(AFTERWARDS)
        except GaveUp:
            pass
        return _measure(job, kind, first, late)


def _late(job: Job) -> float | None:
    return next((x.late for x in job.records.update() if x.late is not None), None)


def _over(job: Job, kind: Kind, first: list[Life], late: float) -> bool:
    """Has everything happened?"""
    now = time.monotonic()
    if kind.place == "step":
        return now > late + SLOW
    job.records.update()
    if now < _end_of(kind, late):
        return False
    if not all(goes_on(x, late, GROUPS) for x in first) and not _ended(job, first):
        return False
    return _back(job, kind, late) is not None


def _ended(job: Job, first: list[Life]) -> int:
    return sum(job.life(x.group) is not x for x in first) + sum(job.gone(x.group) for x in first)


def _back(job: Job, kind: Kind, late: float) -> float | None:
    """When the late group first committed with all others again; one that hangs, in another life."""
    lives = [x for x in job.records.update() if x.group == LATE and (kind.seconds != FOR_EVER or x.started > late)]
    times = [c.t for x in lives for c in x.commits if c.mine and c.t > _end_of(kind, late)]
    return min(times, default=None)


def _end_of(kind: Kind, late: float) -> float:
    """When it stops being late by itself, or `late` if it doesn't."""
    return late + (kind.seconds if kind.place == "between" else 0.0)


def _measure(job: Job, kind: Kind, first: list[Life], late: float) -> Late:
    end = time.monotonic()
    ended = _ended(job, first)
    back = _back(job, kind, late)
    commits = [[c.t for c in x.commits] for x in first]
    longest = None if ended else max(longest_gap(times, late, end) for times in commits)
    usual = sum(late - 2 < t <= late for t in commits[0]) / 2
    pace = sum(late < t <= end for t in commits[0]) / (end - late) / usual if usual else 0.0
    return Late(
        longest,
        None if back is None else back - _end_of(kind, late),
        ended,
        sum(thrown_away(x, late, end) for x in first),
        pace,
    )


def run_late(bench: Bench) -> list[Measured]:
    """Defaults of both libraries, each group under its launcher, steps of 0.1 s; medians of few: each takes minutes."""
    rows = []
    names = bench.settings.get("kinds") or (["thread"] if bench.quick else list(KINDS))
    for name in names:
        pairs = interleave(bench, lambda library, name=name: late_once(library, name))
        kind = KINDS[name]
        what = f"1 of 3 groups: {kind.words} -> "
        hangs = kind.seconds == FOR_EVER
        note = "; ".join(pairs.failures)
        for key, words, unit, read, goal in (
            (
                "longest",
                "others' longest time without a commit",
                "s",
                lambda x: x.longest,
                Goal(3.0) if hangs else None,
            ),
            ("back", "it commits again after", "s", lambda x: x.back, Goal(30.0) if hangs else None),
            ("ended", "others' processes ended", "", lambda x: x.ended, Goal(0, of="total")),
            ("thrown", "others' batches thrown away", "", lambda x: x.thrown, Goal(0, of="total") if hangs else None),
            ("pace", "others' commits meanwhile, of the usual", "x", lambda x: x.pace, None),
        ):
            if hangs and key == "pace":
                continue  # it says how long was watched
            row = Measured(f"late.{name}.{key}", what + words, unit, goal=goal, note=note)
            row.higher_is_better = key == "pace"
            rows.append(pairs.fill(row, read, bench))
            note = ""
    return rows
