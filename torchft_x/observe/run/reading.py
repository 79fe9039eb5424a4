"""Reader of a run's files, each line once: commits become columns of numbers, other events short notes.

Within a process the monotonic clock counts; between processes, each host's wall clock, as NTP keeps it.
A run of a million events is read in seconds and in little memory, so lines are not kept. A line that is no event is
counted and skipped; the torn last line of a killed process is skipped.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torchft_x.observe.events import is_event, whose

Event = dict[str, Any]

_LARGEST = 1 << 62  # bound of a step or a quorum id, so that it fits into a column
_ROLES = ("trainer", "supervisor", "lighthouse", "sidecar", "keeper", "chaos")
KEPT = {
    "start": ("attempt",),
    "joined": (),
    "quorum": ("quorum", "number", "step", "members", "healing"),
    "restored": (),
    "heal_end": (),
    "drop": ("step", "quorum"),
    "redo": ("step",),
    "abort": ("quorum",),
    "member_lost": ("lost", "replica_id", "reason", "left"),
    "new_lineage": ("quorum", "steps", "reason"),
    "leave": ("replica_id",),
    "exit": ("attempt", "code", "reason", "step"),
    "restart": ("group", "reason"),
    "checkpoint": ("step", "duration", "bytes"),
    "metrics": ("step", "loss"),
    "error": ("reason", "code"),
    "fault": ("kind", "group", "rank", "duration", "number"),
}
"""Fields that a note keeps, by event. Others are only counted."""


class Commits:
    """The commits of one process in order of time, as columns."""

    def __init__(self) -> None:
        self.t = array("d")  # monotonic seconds of its host
        self.step = array("q")
        self.quorum = array("q")  # 0: unknown
        self.participants = array("l")
        self.duration = array("d")
        self.own_parts = array("d")  # seconds of its own part of the step; 0: unknown
        self.samples = array("q")  # samples committed so far; -1: unknown
        self.debt = array("q")  # samples in debt
        self.bytes = 0.0  # bytes of all commits together

    def __len__(self) -> int:
        return len(self.t)

    def add(self, mono: float, event: Event) -> None:
        """Add a commit. Raises `ValueError`, `TypeError`, `KeyError` or `OverflowError` for invalid fields."""
        step, quorum, number = event["step"], event.get("quorum", 0), event.get("participants", 1)
        samples, debt = event.get("samples", -1), event.get("debt", 0)
        if not all(type(value) is int for value in (step, quorum, number, samples, debt)):
            raise TypeError
        if min(step, quorum, number, samples + 1, debt) < 0 or max(step, quorum, number, samples, debt) >= _LARGEST:
            raise ValueError
        duration, sent = float(event.get("duration", 0.0)), float(event.get("bytes", 0))
        own = float(event.get("own_part", 0.0))
        if not (-1e15 < duration < 1e15 and -1e15 < own < 1e15 and 0 <= sent < 1e18):  # nan and infinity fail this, too
            raise ValueError
        self.t.append(mono)
        self.step.append(step)
        self.quorum.append(quorum)
        self.participants.append(number)
        self.duration.append(duration)
        self.own_parts.append(own)
        self.samples.append(samples)
        self.debt.append(debt)
        self.bytes += sent


@dataclass(eq=False)
class Log:
    """Log of one process: a worker, a supervisor, a lighthouse."""

    role: str
    group: str
    rank: int
    node: int
    attempt: int
    boot: float  # unix seconds, by its host's wall clock, at which its monotonic clock was 0
    pid: int = 0
    replica_id: str = ""
    commits: Commits = field(default_factory=Commits)
    first: float = 0.0  # monotonic seconds of the first and the last line
    last: float = 0.0


class Note(NamedTuple):
    """An event other than a commit."""

    t: float  # unix seconds; monotonic ones until all files are read
    log: Log
    name: str
    of: dict[str, Any]  # the event's fields in `KEPT`


@dataclass
class RunFiles:
    """Content of a run's files."""

    logs: list[Log] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)  # in order of time
    events: int = 0
    unreadable: int = 0  # number of unreadable lines


def read(run_dir: str | os.PathLike[str]) -> RunFiles:
    """Read all events written by now. A file that can't be opened is skipped."""
    heard = RunFiles()
    readers: dict[str, _LogReader] = {}
    for path in sorted(Path(run_dir, "events").glob("*.jsonl")):
        try:
            with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                readers.setdefault(whose(path), _LogReader(heard)).read(lines)
        except OSError:
            continue
    heard.notes = sorted((note._replace(t=note.t + note.log.boot) for note in heard.notes), key=lambda note: note.t)
    return heard


class _LogReader:
    """Reader of the files of one log. Its state is the log of the process that wrote the newest line."""

    def __init__(self, heard: RunFiles) -> None:
        self._heard = heard
        self._log: Log | None = None

    def read(self, lines: Iterable[str]) -> None:
        """Add the lines of one file. Those of the log's earlier files were read before."""
        decode = json.JSONDecoder().decode
        for line in lines:
            if not line.endswith("\n"):
                break  # the line is still being written, or its writer was killed
            try:
                event = decode(line)
                if event["event"] == "commit":
                    mono, t = event["mono"], event["t"]
                    if not (type(mono) is type(t) is float and 0.0 <= mono < 1e12 and 0.0 <= t < 1e12):
                        raise ValueError
                    self.log_of(event, mono, t).commits.add(mono, event)
                else:
                    self.other(event)
                self._heard.events += 1
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError, AttributeError):
                self._heard.unreadable += 1

    def log_of(self, event: Event, mono: float, t: float) -> Log:
        """Return an event's log, a new one if another process with the same id (in a container) goes on in the file."""
        log = self._log
        if log is None or mono < log.last or (log.role == "trainer" and event.get("attempt", 0) != log.attempt):
            log = self._log = _begin(event, mono, t)
            self._heard.logs.append(log)
        log.last = mono
        return log

    def other(self, event: Event) -> None:
        if not is_event(event) or type(event["event"]) is not str:
            raise ValueError
        mono, t = float(event["mono"]), float(event["t"])
        if not (0.0 <= mono < 1e12 and 0.0 <= t < 1e12):
            raise ValueError
        name = sys.intern(event["event"])
        log = self.log_of(event, mono, t)
        log.boot = max(log.boot, t - mono)  # a process interrupted between reading its clocks reads `mono` late
        who = event.get("replica_id")
        if log.role == "trainer" and type(who) is str:
            log.replica_id = sys.intern(who)
        if name in KEPT:
            self._heard.notes.append(Note(mono, log, name, _short(event, KEPT[name])))


def _begin(event: Event, mono: float, t: float) -> Log:
    role, group = event.get("role"), event.get("group")
    rank, node, attempt, pid = (
        value if type(value) is int else 0 for value in map(event.get, ("rank", "node", "attempt", "pid"))
    )
    return Log(
        role=role if role in _ROLES else "",
        group="" if group is None or role == "chaos" else sys.intern(str(group)),
        rank=rank,
        node=node,
        attempt=attempt,
        boot=t - mono,
        pid=pid,
        replica_id=event["replica_id"] if type(event.get("replica_id")) is str else "",
        first=mono,
    )


def _short(event: Event, names: tuple[str, ...]) -> dict[str, Any]:
    out = {}
    for name in names:
        value = event.get(name)
        if value is None:
            continue
        if name in ("members", "healing", "lost"):
            value = tuple(map(sys.intern, [value] if isinstance(value, str) else map(str, value)))
        elif name in _TEXTS:
            value = sys.intern(str(value))
        elif name in _NUMBERS:
            value = float(value)
            if not -1e18 < value < 1e18:  # nan, infinity
                continue
        elif name in _COUNTS:
            value = int(value)
            if not -_LARGEST < value < _LARGEST:
                continue
        out[name] = value
    return out


_TEXTS = ("reason", "replica_id", "kind", "group")
_NUMBERS = ("duration", "bytes", "loss")
_COUNTS = ("step", "quorum", "number", "steps", "attempt", "code", "rank")
