"""Cost of a group that hangs or is slow, one of three, and of groups that all pause now and then for other work."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from benchmarks.bench import Bench, Measured, interleave
from benchmarks.job import Job
from benchmarks.lateness import FOR_EVER, KINDS, Kind
from benchmarks.libraries import Library
from benchmarks.processes import GaveUp, wait_for
from benchmarks.record import AttemptRecord, goes_on, longest_gap, thrown_away
from benchmarks.stats import Goal, Sample

GROUPS = 3
LATE = "1"
PACE = 0.1  # seconds of a step
BOUND = 150.0  # seconds to watch: the peer's others end after 60 + 60
SLOW = 40.0  # seconds to watch a group that is always slow
BUSY = 600.0  # seconds of a job in which all groups do other work now and then
AFTERWARDS = 2.0  # seconds to watch on when the late group is back


@dataclass(frozen=True)
class Late:
    """Cost of one late group to itself and to the others."""

    longest: Sample
    """Longest time between two commits of the others, in seconds. None: one of them ended."""
    back: Sample
    """Seconds until the group had committed with the others again. None: not within `BOUND`."""
    ended: int
    """Number of the other groups' processes that ended."""
    thrown: int
    """Number of batches that the others drew and never committed."""
    pace: float
    """Commits per second of the others, as a share of their rate before."""


def late_once(library: Library, name: str) -> Late:
    kind = KINDS[name]
    trainer = ("--late", name, "--pace", str(PACE))
    with Job(library, GROUPS, launched=True, trainer=trainer, ranks=kind.ranks) as job:
        job.wait_together(steps=15)
        late = wait_for(lambda: _late(job), 60.0, "the group is late")
        first = [x for x in job.attempts() if x.group != LATE]
        try:
            wait_for(lambda: _over(job, kind, first, late), BOUND, "the group is back", poll=0.1)
            time.sleep(AFTERWARDS)
        except GaveUp:
            pass
        return _measure(job, kind, first, late)


def _late(job: Job) -> float | None:
    return next((x.late for x in job.records.update() if x.late is not None), None)


def _over(job: Job, kind: Kind, first: list[AttemptRecord], late: float) -> bool:
    """Return whether watching may stop: the group is back, and each other one has trained on or ended."""
    now = time.monotonic()
    if kind.place == "step":
        return now > late + SLOW
    job.records.update()
    if now < _end_of(kind, late):
        return False
    if not all(goes_on(x, late, GROUPS) for x in first) and not _ended(job, first):
        return False
    return _back(job, kind, late) is not None


def _ended(job: Job, first: list[AttemptRecord]) -> int:
    return sum(job.attempt(x.group) is not x for x in first) + sum(job.gone(x.group) for x in first)


def _back(job: Job, kind: Kind, late: float) -> float | None:
    """Return the monotonic time at which the late group first committed again; a hung one must have restarted."""
    attempts = [x for x in job.records.update() if x.group == LATE and (kind.seconds != FOR_EVER or x.started > late)]
    times = [c.t for x in attempts for c in x.commits if c.mine and c.t > _end_of(kind, late)]
    return min(times, default=None)


def _end_of(kind: Kind, late: float) -> float:
    """Return the monotonic time at which the group stops being late by itself, or `late` if it doesn't."""
    return late + (kind.seconds if kind.place == "between" else 0.0)


def _measure(job: Job, kind: Kind, first: list[AttemptRecord], late: float) -> Late:
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


@dataclass(frozen=True)
class Busy:
    """Results of a job whose groups pause now and then for other work."""

    ended: int
    """Number of processes that ended, of any group."""
    apart: int
    """Number of times that a group was left out, or the others were."""
    thrown: float
    """Share of the drawn batches that were never committed."""
    rate: float
    """Batches per second that all groups committed together."""
    did: int
    """Number of evaluations, checkpoints and compilations."""


def busy_once(library: Library, seconds: float) -> Busy:
    """Run a job whose groups behave like `lateness.Mixed` for `seconds`, and return its results."""
    with Job(library, GROUPS, launched=True, trainer=("--late", "mixed", "--pace", str(PACE))) as job:
        job.wait_together(steps=5)
        begin = time.monotonic()
        while time.monotonic() < begin + seconds and not any(map(job.gone, job.names)):
            time.sleep(0.5)
        end = time.monotonic()
        attempts = job.records.update()
        drawn = sum(begin < t < end for x in attempts for t in x.drawn)
        full = [c.groups == GROUPS for c in job.attempt("0").commits if begin < c.t < end]
        return Busy(
            len(attempts) - GROUPS + sum(map(job.gone, job.names)),
            sum(a and not b for a, b in itertools.pairwise(full)),
            sum(thrown_away(x, begin, end) for x in attempts) / max(1, drawn),
            sum(begin < c.t < end and c.mine for x in attempts for c in x.commits) / (end - begin),
            sum(begin < t < end for x in attempts for t, _ in x.did),
        )


def run_busy(bench: Bench) -> list[Measured]:
    seconds = bench.settings.get("seconds") or (20.0 if bench.quick else BUSY)
    pairs = interleave(bench, lambda library: busy_once(library, seconds))
    did = sum(x.did for x in pairs.got["ours"])
    note = f"{seconds:g} s each; ours did {did} such things in all"
    what = "3 groups evaluate, save, compile, unannounced, steps of 0.1 to 1 s -> "
    rows = [
        (Measured("late.mixed.ended", what + "processes ended", "", goal=Goal(0, of="total")), lambda x: x.ended),
        (Measured("late.mixed.apart", what + "times that somebody was left out", ""), lambda x: x.apart),
        (Measured("late.mixed.thrown", what + "batches thrown away, of all", "x"), lambda x: x.thrown),
        (Measured("late.mixed.rate", what + "batches committed", "1/s", higher_is_better=True), lambda x: x.rate),
    ]
    rows[0][0].note = "; ".join([note, *pairs.failures])
    return [pairs.fill(row, read, bench) for row, read in rows]


def run_late(bench: Bench) -> list[Measured]:
    """Measure each kind of lateness, with both libraries' defaults and launchers, and steps of 0.1 s.

    The medians are of few samples, since each takes minutes.
    """
    rows = []
    names = bench.settings.get("kinds") or (["thread"] if bench.quick else list(KINDS))
    for name in names:
        if KINDS[name].place == "mixed":
            rows += run_busy(bench)
            continue
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
                continue  # the pace of a hang depends on how long it is watched
            row = Measured(f"late.{name}.{key}", what + words, unit, goal=goal, note=note)
            row.higher_is_better = key == "pace"
            rows.append(pairs.fill(row, read, bench))
            note = ""
    return rows
