"""Settings and results that all benchmarks share, and the interleaving of both libraries' runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from benchmarks.libraries import Library
from benchmarks.processes import GaveUp
from benchmarks.stats import Goal, Sample

T = TypeVar("T")

TOLERATED = 3
"""Number of failed tries of one library in a row that end its side of a benchmark."""


@dataclass
class Measured:
    """One row of the table, with its samples. Sample i of ours and of the peer are a pair."""

    key: str
    what: str
    unit: str
    ours: list[Sample] = field(default_factory=list)
    peer: list[Sample] = field(default_factory=list)
    limit: list[Sample] = field(default_factory=list)
    """Samples of a raw limit, or of a control, each beside the sample of ours with the same index."""
    limit_is: str = ""
    """Description of the limit, in a few words."""
    goal: Goal | None = None
    why_not: str = ""
    """Reason why ours was not measured."""
    why_no_peer: str = ""
    """Reason why the peer was not measured."""
    note: str = ""
    higher_is_better: bool = False
    timeline: dict[str, Any] = field(default_factory=dict)
    """Rates and kills of the first run of each library, which draw.py draws."""


@dataclass
class Bench:
    """Settings of one run of one benchmark."""

    ours: Library | None
    """None if only the peer is to be measured."""
    peer: Library | str
    """The peer, or a sentence with the reason why it is missing."""
    pairs: int
    peer_pairs: int
    """Pairs in which the peer runs: fewer than `pairs` where its failures take minutes."""
    quick: bool = False
    """Whether this is a smoke run: one small pair, as proof that the benchmark runs."""
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
    """Results of both libraries, pair by pair, and the errors of failed tries."""

    def __init__(self) -> None:
        self.got: dict[str, list[T]] = {"ours": [], "peer": []}
        self.failures: list[str] = []

    def values(self, key: str, read: Callable[[T], Sample]) -> list[Sample]:
        return [read(x) for x in self.got[key]]

    def fill(self, row: Measured, read: Callable[[T], Sample], bench: Bench) -> Measured:
        """Put the samples, or the reasons why they are missing, into `row`, and return it."""
        row.ours, row.peer = self.values("ours", read), self.values("peer", read)
        row.why_no_peer = bench.why_no_peer or ("" if row.peer else "each try failed, see the notes")
        if not row.ours:
            row.why_not = "each try failed, see the notes" if bench.ours else "only the peer was asked for"
        return row


def interleave(bench: Bench, once: Callable[[Library], T]) -> Pairs[T]:
    """Run `once` for both libraries in the order A B B A ..., and return the results of `bench.pairs` pairs.

    A failed try (a job that doesn't come up, ...) is printed, recorded among the failures, and repeated at once, so
    that the samples i of both libraries stay neighbours in time.
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
        except (GaveUp, OSError) as e:  # OSError: a process of the job has ended unexpectedly
            failures.append(f"{library.key}: {e}")
            bench.say(f"  a try failed: {library.module}: {e}")
    return None
