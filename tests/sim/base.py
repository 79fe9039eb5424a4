"""Foundation of the simulated cluster: random numbers, clocks, processes and the trace."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

T = TypeVar("T")
_LONG_ID = re.compile(r"\b\d{15,}\b")  # a quorum id in the machines' texts
Call = Callable[..., Any]


class Rng:
    """Random numbers, all drawn from `Random.random`, whose sequence is the same in every version of Python."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random  # floats in [0, 1)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def below(self, n: int) -> int:
        return int(self.random() * n)

    def choose(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def some(self, options: Sequence[T], probability: float) -> list[T]:
        """Return the options in order, each kept with this probability."""
        return [o for o in options if self.random() < probability]


class Clock:
    """A host's monotonic clock: it may run fast or slow, and stand still for a while."""

    __slots__ = ("_at", "_local", "_rate", "_running")

    def __init__(self, now: float, start: float, rate: float) -> None:
        self._at = now  # virtual time of the last change of rate
        self._local = start  # local time at `_at`
        self._running = rate  # rate while the clock does not stall
        self._rate = rate  # present rate; 0 during a stall

    def read(self, now: float) -> float:
        return self._local + (now - self._at) * self._rate

    def stall(self, now: float) -> None:
        self._local, self._at, self._rate = self.read(now), now, 0.0

    def go_on(self, now: float) -> None:
        self._local, self._at, self._rate = self.read(now), now, self._running


class Process:
    """One operating system process.

    A stopped one (SIGSTOP) does nothing, but its kernel still accepts and keeps what arrives, and its clock runs on. A
    dead one never does anything again.
    """

    __slots__ = ("backlog", "clock", "dead", "name", "paused", "resumed", "site", "stopped")

    def __init__(self, name: str, site: str, clock: Clock) -> None:
        self.name = name  # name in the trace
        self.site = site  # site that partitions and power losses refer to
        self.clock = clock  # the host's clock, shared by all of its processes
        self.stopped = False  # paused or dead; the only flag that the world reads
        self.paused = False
        self.resumed = 0.0  # virtual time of the last SIGCONT
        self.dead = False
        self.backlog: list[tuple[Call, tuple[Any, ...]]] = []  # calls that came due while paused, in order

    def die(self) -> None:
        self.dead = self.stopped = True
        self.paused = False
        self.backlog.clear()


class Trace:
    """Log of the messages and state changes of a run, with virtual times.

    A line is formatted when it is read. Arguments that are callable are called then.
    """

    def __init__(self, keep: int | None) -> None:
        self._lines: deque[tuple[float, str, str, tuple[Any, ...]]] = deque(maxlen=keep)  # `keep` None: all lines
        self._quorums: dict[int, str] = {}  # quorum id -> q1, q2, ... in the order of their issue

    def note(self, now: float, who: str, what: str, *args: Any) -> None:
        self._lines.append((now, who, what, args))

    def name(self, quorum_id: int) -> str:
        """Return ``q7`` for a quorum id, counted over the whole run."""
        if quorum_id == 0:
            return "q0"
        return self._quorums.setdefault(quorum_id, f"q{len(self._quorums) + 1}")

    def lines(self, last: int | None = None) -> list[str]:
        lines = []
        for now, who, what, args in list(self._lines)[0 if last is None else -last :]:
            text = what.format(*(part() if callable(part) else part for part in args))
            lines.append(f"{now:10.4f}  {who:<12} {_LONG_ID.sub(self._short, text)}")
        return lines

    def _short(self, long: re.Match[str]) -> str:
        return self._quorums.get(int(long[0]), long[0])


def fold(*parts: object) -> int:
    """Hash these parts into a number that stands for them and for nothing else (64 bits of a hash of their text)."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big")
