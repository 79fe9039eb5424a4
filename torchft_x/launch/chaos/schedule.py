"""Faults: kinds, schedules, and the interface to the processes that they strike. Pure: equal seeds and equal living processes give equal faults."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchft_x.errors import ConfigError
from torchft_x.timing import TIMING

KINDS = {
    "kill": "worker",
    "stop": "worker",
    "hang": "worker",
    "drain": "worker",
    "supervisor": "supervisor",
    "lighthouse": "lighthouse",
}
"""Role of the victim of each kind of fault."""
LASTING = ("stop", "hang")
"""Kinds of faults with a duration."""
_STOP = (2 * TIMING.silence_stopped, 4 * TIMING.silence_stopped)  # range of a stop's seconds, enough to evict a member


@dataclass(frozen=True, order=True)
class Target:
    """Living process of the run."""

    role: str  # worker, supervisor or lighthouse
    group: str  # group id; '' for the lighthouse
    rank: int
    pid: int  # process id on its host; 0 on Kubernetes
    pod: str = ""  # name of the pod on Kubernetes, else ''

    def __str__(self) -> str:
        what = f"pod {self.pod}" if self.pod else f"process {self.pid}"
        where = f" of group {self.group}" if self.group else ""
        return f"{self.role}{f' {self.rank}' if self.role == 'worker' else ''}{where} ({what})"


class Targets(Protocol):
    """Processes of a run under one scheduler, with the means to strike them."""

    def living(self) -> list[Target]:
        """Return the living processes; none if the job is over, or never ran here."""

    def strike(self, target: Target, kind: str, seconds: float | None = None) -> bool:
        """Cause the fault at once, and return whether it took effect. `seconds` is the length of a hang; None is endless.

        Return False if the process has just ended, no longer belongs to this run, or can't hang now.
        """

    def resume(self, target: Target) -> None:
        """End a stop. Do nothing if the process has ended."""


@dataclass(frozen=True)
class Planned:
    """Planned fault."""

    at: float  # seconds from the beginning
    kind: str
    group: str | None  # group of the victim; None for any
    draw: float  # random number in [0, 1) that chooses among the possible victims
    seconds: float | None  # duration of a stop or a hang; None for an endless hang

    def choose(self, targets: Sequence[Target]) -> Target | None:
        """Return the victim among these processes, or None if none of them fits."""
        role = KINDS[self.kind]
        fit = sorted(t for t in targets if t.role == role and (self.group is None or t.group == self.group))
        return fit[int(self.draw * len(fit))] if fit else None


def poisson(mean: float, count: int | None, kinds: Sequence[str], seed: int) -> Iterator[Planned]:
    """Return a plan of random faults, with exponential gaps of `mean` seconds on average, endless if `count` is None.

    Raise `ConfigError` for values out of range or an unknown kind.
    """
    if not (math.isfinite(mean) and mean > 0):
        raise ConfigError(f"--mean is {mean:g}, it must be more than 0 seconds.")
    if count is not None and count < 1:
        raise ConfigError(f"--count is {count}, it must be at least 1.")
    for kind in kinds:
        _check(kind)

    def plan() -> Iterator[Planned]:
        rng, at = random.Random(seed), 0.0
        for _ in itertools.count() if count is None else range(count):
            at += rng.expovariate(1.0 / mean)
            kind, draw, took = rng.choice(kinds), rng.random(), rng.uniform(*_STOP)
            yield Planned(at, kind, None, draw, None if kind == "hang" else took)

    return plan()


def listed(text: str, seed: int) -> list[Planned]:
    """Parse a plan such as ``10:kill:1,20:lighthouse,30:stop:0:4``: seconds, kind, and optionally group and duration.

    Return the faults in the order of their times. Raise `ConfigError` for anything else.
    """
    rng = random.Random(seed)
    found = []
    for item in text.split(","):
        parts = item.strip().split(":")
        if not 2 <= len(parts) <= 4:
            raise ConfigError(f"--at {item.strip()!r} is not SECONDS:KIND[:GROUP[:SECONDS]].")
        at, kind, group, seconds = (*parts, "", "")[:4]
        _check(kind)
        by_chance = rng.uniform(*_STOP)
        took = _seconds(seconds, item) if seconds else None if kind == "hang" else by_chance
        found.append(Planned(_seconds(at, item), kind, group or None, rng.random(), took))
    return sorted(found, key=lambda planned: planned.at)


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"there is no kind of fault {kind!r}; the kinds are {', '.join(KINDS)}.")


def _seconds(text: str, item: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"--at {item.strip()!r}: {text!r} is no number of seconds.")
    return value
