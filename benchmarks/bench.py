"""What every benchmark is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from benchmarks.libraries import Library
from benchmarks.processes import GaveUp
from benchmarks.stats import Goal, Sample

T = TypeVar("T")

TOLERATED = 3
"""So many failed tries of one library in a row end its side of a benchmark."""


@dataclass
class Measured:
    """One row of the table, with its samples. Sample i of ours and of the peer are a pair."""

    key: str
    what: str
    unit: str
    ours: list[Sample] = field(default_factory=list)
    peer: list[Sample] = field(default_factory=list)
    limit: list[Sample] = field(default_factory=list)
    """A raw limit, or a control, in our pairs."""
    limit_is: str = ""
    """What the limit is, in a few words."""
    goal: Goal | None = None
    why_not: str = ""
    """Why ours was not measured."""
    why_no_peer: str = ""
    note: str = ""
    higher_is_better: bool = False
    timeline: dict[str, Any] = field(default_factory=dict)
    """For a picture, see draw.py."""


@dataclass
class Bench:
    """Settings of one run of one benchmark."""

    ours: Library | None
    """None: only the peer is asked for."""
    peer: Library | str
    """A sentence if it is not there."""
    pairs: int
    peer_pairs: int
    """Where the peer's failures take minutes, fewer than `pairs`."""
    quick: bool = False
    """Smoke: everything once, small, as proof that it runs."""
    say: Callable[[str], None] = print
    settings: dict[str, Any] = field(default_factory=dict)
    """Options of this benchmark from the command line."""

    @property
    def libraries(self) -> list[Library]:
        return [x for x in (self.ours, self.peer) if isinstance(x, Library)]

    @property
    def why_no_peer(self) -> str:
        return self.peer if isinstance(self.peer, str) else ""


class Pairs(Generic[T]):
    """What A B B A gave: results of both libraries, pair by pair, and what failed."""

    def __init__(self) -> None:
        self.got: dict[str, list[T]] = {"ours": [], "peer": []}
        self.failures: list[str] = []

    def values(self, key: str, read: Callable[[T], Sample]) -> list[Sample]:
        return [read(x) for x in self.got[key]]

    def fill(self, row: Measured, read: Callable[[T], Sample], bench: Bench) -> Measured:
        """Put the samples into `row`."""
        row.ours, row.peer = self.values("ours", read), self.values("peer", read)
        row.why_no_peer = bench.why_no_peer or ("" if row.peer else "each try failed, see the notes")
        if not row.ours:
            row.why_not = "each try failed, see the notes" if bench.ours else "only the peer was asked for"
        return row


def interleave(bench: Bench, once: Callable[[Library], T]) -> Pairs[T]:
    """Run `once` for both libraries in the order A B B A ..., as many pairs as asked for.

    A try that fails (a job that doesn't come up, ...) is told, kept among the failures, and tried again, so that
    sample i of both stay neighbours in time.
    """
    out: Pairs[T] = Pairs()
    wanted = {"ours": bench.pairs, "peer": min(bench.pairs, bench.peer_pairs)}
    for i in range(bench.pairs):
        order = bench.libraries if i % 2 == 0 else bench.libraries[::-1]
        for library in order:
            if i >= wanted[library.key]:
                continue
            result = _try(bench, once, library, out.failures)
            if result is None:
                wanted[library.key] = 0
            else:
                out.got[library.key].append(result)
    return out


def _try(bench: Bench, once: Callable[[Library], T], library: Library, failures: list[str]) -> T | None:
    for _ in range(TOLERATED):
        try:
            return once(library)
        except (GaveUp, OSError) as e:  # OSError: a process was gone that should have been there
            failures.append(f"{library.key}: {e}")
            bench.say(f"  a try failed: {library.module}: {e}")
    return None
