"""The trainers' records, and the measures that benchmarks compute from them, independent of any Manager."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Commit(NamedTuple):
    """A committed step."""

    t: float  # monotonic seconds
    step: int
    groups: int  # number of groups that took part
    mine: bool  # whether the recording group was one of them


@dataclass
class AttemptRecord:
    """Record of one process of one group. Times are monotonic seconds."""

    group: str = ""
    pid: int = 0
    started: float = 0.0
    ready: float | None = None  # end of the Manager's construction
    ended: float | None = None  # end of a stand-in
    late: float | None = None  # begin of the group's lateness
    did: list[tuple[float, str]] = field(default_factory=list)  # end and name of each pause for other work
    drawn: list[float] = field(default_factory=list)  # times at which batches were drawn
    commits: list[Commit] = field(default_factory=list)

    def take(self, line: str) -> None:
        """Add a line of the record; trainer.py defines the format."""
        kind, at, *rest = line.split()
        t = float(at)
        if kind == "S":
            self.started, self.pid, self.group = t, int(rest[0]), rest[1]
        elif kind == "M":
            self.ready = t
        elif kind == "B":
            self.drawn.append(t)
        elif kind == "C":
            self.commits.append(Commit(t, int(rest[0]), int(rest[1]), rest[2] == "1"))
        elif kind == "E":
            self.ended = t
        elif kind == "L":
            self.late = t
        elif kind == "D":
            self.did.append((t, rest[0]))


class Records:
    """All attempts in a folder of records, read while the trainers write them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempts: dict[str, AttemptRecord] = {}  # by file name
        self._read: dict[str, int] = {}  # bytes of each file that were read, by file name

    def update(self) -> list[AttemptRecord]:
        """Read the new whole lines of all records, and return all attempts, oldest first."""
        for path in self.folder.glob("*.rec"):
            begin = self._read.get(path.name, 0)
            with path.open("rb") as f:
                f.seek(begin)
                data = f.read()
            end = data.rfind(b"\n") + 1
            self._read[path.name] = begin + end
            attempt = self.attempts.setdefault(path.name, AttemptRecord())
            for line in data[:end].decode().splitlines():
                attempt.take(line)
        return sorted((x for x in self.attempts.values() if x.pid), key=lambda x: x.started)

    def newest(self, group: str) -> AttemptRecord | None:
        attempts = [x for x in self.update() if x.group == group]
        return attempts[-1] if attempts else None


def goes_on(attempt: AttemptRecord, after: float, fewer_than: int) -> float | None:
    """Return when this attempt first committed a step with fewer than so many groups after `after`, or None."""
    return next((c.t for c in attempt.commits if c.t > after and c.groups < fewer_than), None)


def longest_gap(times: Iterable[float], begin: float, end: float) -> float:
    """Return the longest time between neighbours of `times`, from the last before `begin` to the first after `end`."""
    chosen: list[float] = []
    for t in times:
        if t < begin:
            chosen = [t]
        else:
            chosen.append(t)
            if t > end:
                break
    if not chosen or chosen[-1] < end:
        chosen.append(end)
    if len(chosen) == 1:
        return end - begin
    return max(b - a for a, b in itertools.pairwise(chosen))


def thrown_away(attempt: AttemptRecord, begin: float, end: float) -> int:
    """Return the number of batches drawn in this time and never committed, except the last, which may still be."""
    lost = 0
    commits = iter(c.t for c in attempt.commits)
    commit = next(commits, None)
    for drawn, following in itertools.pairwise(attempt.drawn):
        while commit is not None and commit < drawn:
            commit = next(commits, None)
        good = commit is not None and commit <= following
        lost += not good and following > begin and drawn < end
    return lost


def together(attempts: Sequence[AttemptRecord], after: float) -> float | None:
    """Return when all attempts had committed the first step after `after` in which all took part, or None."""
    steps = [{c.step: c.t for c in x.commits if c.t > after and c.mine and c.groups == len(attempts)} for x in attempts]
    shared = set.intersection(*(set(s) for s in steps)) if steps else set()
    return max(s[min(shared)] for s in steps) if shared else None
