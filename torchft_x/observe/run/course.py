"""The course of a run's steps, combined from all ranks' commits; step times and goodput."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from torchft_x.observe.run.reading import Log, Note
from torchft_x.observe.run.values import Goodput, Point, Samples, StepTimes

BARS = 48  # bars of the histogram of step times
PARTS = 240  # intervals of the rate over time, at most
POINTS = 1500  # points of the loss curve, about


class Course:
    """The committed steps in order, each with the time of its first commit; in columns, as there may be millions."""

    def __init__(self, logs: Sequence[Log], lineages: Sequence[int] = ()) -> None:
        """`lineages`: ids of quorums that resumed from an older state. An undone step counts at its later commit."""
        t, step, quorum, participants = array("d"), array("q"), array("q"), array("l")
        samples, debt = array("q"), array("q")
        for log in logs:
            if log.role == "trainer" and not log.rank:
                t.extend(x + log.boot for x in log.commits.t)
                step.extend(log.commits.step)
                quorum.extend(log.commits.quorum)
                participants.extend(log.commits.participants)
                samples.extend(log.commits.samples)
                debt.extend(log.commits.debt)
        first: dict[int, int] = {}  # by step: index of the commit that counts
        for i, s in enumerate(step):
            k = first.setdefault(s, i)
            if k != i:
                newer = bisect_right(lineages, quorum[i]) - bisect_right(lineages, quorum[k]) if lineages else 0
                if newer > 0 or (newer == 0 and t[i] < t[k]):
                    first[s] = i
        order = sorted(first.values(), key=t.__getitem__)
        self.t = array("d", (t[i] for i in order))
        self.step = array("q", (step[i] for i in order))
        self.quorum = array("q", (quorum[i] for i in order))
        self.participants = array("l", (participants[i] for i in order))
        self.samples = array("q", (samples[i] for i in order))
        self.debt = array("q", (debt[i] for i in order))
        self.groups = max(self.participants, default=0)  # the largest number that contributed to a step
        self.usual = self._usual()

    def __len__(self) -> int:
        return len(self.t)

    def _usual(self) -> float:
        """Return the median seconds of a step of all groups that follows another such step."""
        p = self.participants
        gaps = [b - a for k, (a, b) in enumerate(pairwise(self.t)) if p[k] == p[k + 1] == self.groups]
        return median(gaps or [b - a for a, b in pairwise(self.t)])

    def after(self, t: float, quorum: int = 0) -> int | None:
        """Return the index of the first commit after `t` in this quorum or a later one, or None."""
        i = bisect_right(self.t, t)
        while i < len(self.t) and self.quorum[i] < quorum:
            i += 1
        return i if i < len(self.t) else None

    def full_after(self, t: float, groups: int) -> float | None:
        """Return the time of the first commit after `t` by at least `groups` groups, or None."""
        i = bisect_right(self.t, t)
        while i < len(self.t) and self.participants[i] < groups:
            i += 1
        return self.t[i] if i < len(self.t) else None

    def number(self, begin: float, end: float | None) -> int:
        """Return the number of steps committed after `begin` and before `end`."""
        last = len(self.t) if end is None else bisect_left(self.t, end)
        return max(0, last - bisect_right(self.t, begin))

    def contributors(self, t: float) -> int:
        """Return the number of groups that contributed to the last commit up to `t`."""
        i = bisect_right(self.t, t)
        return self.participants[i - 1] if i else 0

    def gaps(self, begin: float, end: float) -> range:
        """Return the gaps between two commits that overlap this interval, each as the index of the first of the two."""
        first, last = bisect_right(self.t, begin) - 1, bisect_left(self.t, end)
        return range(max(0, first), min(last, len(self.t) - 1))

    def stood(self, gap: int) -> float:
        """Return the seconds of a gap beyond a usual step."""
        return max(0.0, self.t[gap + 1] - self.t[gap] - self.usual)

    def longest(self, begin: float, end: float) -> float:
        """Return the longest time without a commit that overlaps this interval, in seconds beyond a usual step."""
        return max(map(self.stood, self.gaps(begin, end)), default=0.0)


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def goodput(course: Course) -> Goodput | None:
    """Return the goodput, or None if there are too few steps to measure it."""
    if len(course) < 3 or course.usual <= 0:
        return None
    batches, groups = sum(course.participants), course.groups
    elapsed = course.t[-1] - course.t[0] + course.usual  # the first step took time before its commit, too
    return Goodput(
        batches=batches,
        could=max(float(batches), elapsed / course.usual * groups),
        usual=course.usual,
        groups=groups,
        missing=groups * len(course) - batches,
    )


def rate(course: Course) -> tuple[float, ...]:
    """Return the batches per second in equal intervals of the training time."""
    if len(course) < 2:
        return ()
    begin, end = course.t[0], course.t[-1]
    parts = max(1, min(PARTS, len(course) // 12))
    width = (end - begin) / parts or 1.0
    made = [0.0] * parts
    for t, participants in zip(course.t, course.participants, strict=True):
        made[min(parts - 1, int((t - begin) / width))] += participants
    return tuple(number / width for number in made)


def step_times(logs: Sequence[Log]) -> StepTimes | None:
    """Return the distribution of the step times, or None. Its bars have the same width on a logarithmic axis."""
    took = sorted(d for log in logs if log.rank == 0 for d in log.commits.duration if d > 0)
    if not took:
        return None
    # Outliers, one in a thousand at each end, go into the outer bars; else one hang would leave one bar for all steps.
    low = took[len(took) // 1000] * 0.9
    high = max(took[-1 - len(took) // 1000] * 1.1, low * 1.5)
    edges = [low * (high / low) ** (k / BARS) for k in range(BARS + 1)]
    scale = BARS / math.log(high / low)
    bars = [0] * BARS
    for seconds in took:
        bars[max(0, min(BARS - 1, int(scale * math.log(seconds / low))))] += 1
    return StepTimes(
        median=took[len(took) // 2],
        p95=took[int(0.95 * (len(took) - 1))],
        p99=took[int(0.99 * (len(took) - 1))],
        longest=took[-1],
        edges=tuple(edges),
        bars=tuple(bars),
    )


def samples(course: Course) -> Samples | None:
    """Return what became of the samples; None if the script chose its data itself."""
    if not course.samples or course.samples[-1] < 0:
        return None
    pairs = zip(pairwise(course.step), pairwise(course.samples), strict=True)
    repeated = sum(max(0, before - after) for steps, (before, after) in pairs if steps[0] < steps[1])
    return Samples(committed=course.samples[-1], repeated=repeated, debt=course.debt[-1])


def curve(notes: Sequence[Note]) -> tuple[Point, ...]:
    """Return the loss curve as logged by the scripts. Of too many points, only every nth is kept."""
    points = [
        Point(step=note.of["step"], t=note.t, loss=note.of["loss"])
        for note in notes
        if note.name == "metrics" and {"step", "loss"} <= note.of.keys()
    ]
    return tuple(points[:: max(1, len(points) // POINTS)])
