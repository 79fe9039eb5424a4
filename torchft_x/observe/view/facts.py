"""Define the facts that a group reports about itself for people. No decision depends on them.

Facts are the duration of steps, the progress of a copy of the state, and the moments from which the cost of a loss
follows. They travel on messages that a group sends anyway (`Up.facts` of the wire). Times are ages and durations, so
that no clock of another host is trusted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from torchft_x.units import amount

BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0,
)  # fmt: skip
"""Upper ends in seconds of the buckets of all histograms here. Other bounds need another field on the wire."""
RELEASED, RESTARTED, HEALED, COMMITTED = "released", "restarted", "healed", "committed"
MOST_MOMENTS = 32
"""Most moments in one message. If there are more, the newest are sent."""


class Durations:
    """Histogram of durations. `bounds`: upper ends of the buckets in seconds, rising; a last bucket takes the rest."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds  # inclusive upper ends, seconds
        self.counts = [0] * (len(bounds) + 1)  # per bucket, not cumulative; the last bucket has no end
        self.sum = 0.0  # seconds

    def add(self, seconds: float | None) -> None:
        """Count a duration; None: it is unknown, and not counted."""
        if seconds is not None:
            self.counts[bisect_left(self.bounds, seconds)] += 1
            self.sum += seconds

    def add_all(self, counts: Sequence[int], seconds: float) -> None:
        """Add `counts`, one per bucket from the first on, and their sum in seconds. The rest counts in the last."""
        for i, count in enumerate(counts):
            self.counts[min(i, len(self.bounds))] += count
        self.sum += seconds

    @property
    def number(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean in seconds; None if nothing was counted."""
        return self.sum / self.number if self.number else None

    def buckets(self) -> list[tuple[str, float]]:
        """Return pairs of upper end, as text, and cumulative count. The last end is `+Inf`."""
        total, out = 0, []
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            total += count
            out.append((bound, float(total)))
        return out


@dataclass(frozen=True, slots=True)
class Counted:
    """Increment of a histogram with `BOUNDS`."""

    counts: tuple[int, ...] = ()  # per bucket, not cumulative; trailing empty buckets are left out
    sum: float = 0.0  # seconds


@dataclass(frozen=True, slots=True)
class Moment:
    """Event that happened once, `ago` seconds before it was reported."""

    what: str
    """`RELEASED`: the member has left the collectives of `quorum`. `RESTARTED`: a new attempt is ready to join.
    `HEALED`: the member has copied a state in `took` seconds. `COMMITTED`: the first commit in `quorum` with so many
    `participants`, `took` seconds after this attempt's last commit (0: this commit is its first)."""
    ago: float
    quorum: int = 0
    participants: int = 0
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class Copy:
    """Progress of a copy of the state by a group that heals."""

    source: str  # replica id
    done: int  # bytes copied
    total: int  # bytes of the state; 0: not known yet
    took: float  # seconds since the copy began

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.done / self.took if self.took > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one message. Numbers count from the last facts of this attempt."""

    commits: int = 0
    drops: int = 0
    steps: Counted = Counted()
    reductions: Counted = Counted()
    heals: Counted = Counted()
    moments: tuple[Moment, ...] = ()
    copy: Copy | None = None
    own_part: float = 0.0
    """Median seconds of the group's own part of its newest `speed.STEPS` steps; 0: not known."""


NOTHING = Facts()


class Tally:
    """Sum of the facts that all groups have reported."""

    def __init__(self) -> None:
        self.commits = 0  # per group: a step of four groups counts four times
        self.drops = 0
        self.steps = Durations(BOUNDS)  # from the begin of a step to its commit
        self.reductions = Durations(BOUNDS)  # from the issue of a step's first reduction to the end of its last
        self.heals = Durations(BOUNDS)  # of a copy of the state

    def add(self, facts: Facts) -> None:
        self.commits += facts.commits
        self.drops += facts.drops
        for durations, counted in (
            (self.steps, facts.steps), (self.reductions, facts.reductions), (self.heals, facts.heals),
        ):  # fmt: skip
            durations.add_all(counted.counts, counted.sum)


def copying(copy: Copy) -> str:
    """Return a copy's progress as a clause: ``copies from 0:9f2c: 3 GB of 10 GB (30 %), 1.5 GB/s``."""
    share = min(100, 100 * copy.done // copy.total) if copy.total else 0
    known = f"{amount(copy.done)} of {amount(copy.total)} ({share} %), " if copy.total else ""
    rate = f"{amount(copy.rate)}/s" if copy.done else f"for {copy.took:.0f} s"
    return f"copies from {copy.source}: {known}{rate}"
