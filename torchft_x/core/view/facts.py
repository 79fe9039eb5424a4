"""What a group tells of itself for people to see: how long its steps take, how its copy of a state comes along, and the
moments that say what a loss has cost. Nothing is decided by it.

It travels on messages that a group sends anyway (`Up.facts` of the wire). Times are ages and durations, so that no clock of
another host is trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.view.durations import Durations

BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0,
)  # fmt: skip
"""Seconds: upper ends of the buckets of all that is counted here. Another one needs another field on the wire."""
RELEASED, RESTARTED, HEALED, COMMITTED = "released", "restarted", "healed", "committed"
MOST_MOMENTS = 32
"""In one message; of more the newest count."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Of a histogram with `BOUNDS`: what was added to it."""

    counts: tuple[int, ...] = ()  # of each bucket by itself; trailing empty ones are left out
    sum: float = 0.0  # seconds

    @property
    def number(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened once, `ago` seconds before it was told."""

    what: str
    """`RELEASED`: it is out of the collectives of `quorum`. `RESTARTED`: a new life is ready to join. `HEALED`: it has copied
    a state, which took `took` seconds. `COMMITTED`: the first commit in `quorum` with so many `participants`, `took`
    seconds after this life's last commit (0: it is its first)."""
    ago: float
    quorum: int = 0
    participants: int = 0
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class Copy:
    """The state that a group copies."""

    source: str  # replica id
    done: int  # bytes
    total: int  # 0: not known yet
    took: float  # seconds until now

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.done / self.took if self.took > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Numbers are since the last facts of this life."""

    commits: int = 0
    drops: int = 0
    steps: Counted = Counted()
    reductions: Counted = Counted()
    heals: Counted = Counted()
    moments: tuple[Moment, ...] = ()
    copy: Copy | None = None


NOTHING = Facts()


class Tally:
    """All that all groups have told, added up."""

    def __init__(self) -> None:
        self.commits = 0  # a step of four groups is four
        self.drops = 0
        self.steps = Durations(BOUNDS)  # begin of a step -> its commit
        self.reductions = Durations(BOUNDS)  # the first reduction of a step is issued -> the last has ended
        self.heals = Durations(BOUNDS)  # a copy of the state

    def add(self, facts: Facts) -> None:
        self.commits += facts.commits
        self.drops += facts.drops
        for durations, counted in (
            (self.steps, facts.steps), (self.reductions, facts.reductions), (self.heals, facts.heals),
        ):  # fmt: skip
            durations.add_all(counted.counts, counted.sum)


def copying(copy: Copy) -> str:
    """How far a copy is, as a clause: ``copies from 0:9f2c: 3.00 GB of 10.00 GB (30 %), 1.50 GB/s``."""
    known = f"{copied(copy.done)} of {copied(copy.total)} ({percent(copy)} %), " if copy.total else ""
    rate = f"{copied(copy.rate)}/s" if copy.done else f"for {copy.took:.0f} s"
    return f"copies from {copy.source}: {known}{rate}"


def percent(copy: Copy) -> int:
    return min(100, 100 * copy.done // copy.total) if copy.total else 0


def copied(nbytes: float) -> str:
    """An amount of bytes, for people."""
    if nbytes >= 1e9:
        return f"{nbytes / 1e9:.2f} GB"
    return f"{nbytes / 1e6:.0f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.0f} kB"
