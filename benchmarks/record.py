"""What the trainers wrote down, and what can be read from it. Counted outside of any Manager."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Commit(NamedTuple):
    t: float
    step: int
    groups: int
    mine: bool


@dataclass
class Life:
    """One process of one group."""

    group: str = ""
    pid: int = 0
    started: float = 0.0
    ready: float | None = None  # when its Manager stood
    ended: float | None = None  # of a stand-in
    late: float | None = None  # since when
    did: list[tuple[float, str]] = field(default_factory=list)  # something else than training, until when
    drawn: list[float] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)

    def take(self, line: str) -> None:
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
    """All lives in a folder, read as they are written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lives: dict[str, Life] = {}  # by file name
        self._read: dict[str, int] = {}  # bytes of each file that were taken

    def update(self) -> list[Life]:
        """All lives, oldest first. A line that is still being written waits for the next call."""
        for path in self.folder.glob("*.rec"):
            begin = self._read.get(path.name, 0)
            with path.open("rb") as f:
                f.seek(begin)
                data = f.read()
            end = data.rfind(b"\n") + 1
            self._read[path.name] = begin + end
            life = self.lives.setdefault(path.name, Life())
            for line in data[:end].decode().splitlines():
                life.take(line)
        return sorted((x for x in self.lives.values() if x.pid), key=lambda x: x.started)

    def newest(self, group: str) -> Life | None:
        lives = [x for x in self.update() if x.group == group]
        return lives[-1] if lives else None


def goes_on(life: Life, after: float, fewer_than: int) -> float | None:
    """When this life first committed a step without the dead: with fewer than so many groups."""
    return next((c.t for c in life.commits if c.t > after and c.groups < fewer_than), None)


def longest_gap(times: Iterable[float], begin: float, end: float) -> float:
    """Between two happenings; the last one before `begin` counts as a neighbour, and so does the first after `end`."""
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


def thrown_away(life: Life, begin: float, end: float) -> int:
    """Batches drawn in this time that were never committed, except the last, which may still be."""
    lost = 0
    commits = iter(c.t for c in life.commits)
    commit = next(commits, None)
    for drawn, following in itertools.pairwise(life.drawn):
        while commit is not None and commit < drawn:
            commit = next(commits, None)
        good = commit is not None and commit <= following
        lost += not good and following > begin and drawn < end
    return lost


def together(lives: Sequence[Life], after: float) -> float | None:
    """When all of these had first committed one and the same step in which all took part."""
    steps = [{c.step: c.t for c in x.commits if c.t > after and c.mine and c.groups == len(lives)} for x in lives]
    shared = set.intersection(*(set(s) for s in steps)) if steps else set()
    return max(s[min(shared)] for s in steps) if shared else None
