"""Questions that tests and benchmarks ask about the events of a run, as `read_events` returns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A trainer process, as its Manager's `joined` event describes it."""

    group: str
    rank: int
    attempt: int
    pid: int
    t: float


def workers(events: Sequence[Event]) -> list[Worker]:
    """Return the newest attempt of every (group, rank), whether it still runs or not."""
    newest: dict[tuple[str, int], Worker] = {}
    for e in events:
        if e.get("event") == "joined" and e.get("role") == "trainer" and "group" in e and "pid" in e:
            worker = Worker(
                group=str(e["group"]),
                rank=int(e.get("rank", 0)),
                attempt=int(e.get("attempt", 0)),
                pid=int(e["pid"]),
                t=float(e["t"]),
            )
            newest[worker.group, worker.rank] = worker
    return [newest[key] for key in sorted(newest)]


def commits(events: Sequence[Event], *, group: str | None = None) -> list[Event]:
    """Return the commit events of trainers, of one group or of all, in order of time."""
    return [e for e in events if e.get("event") == "commit" and (group is None or str(e.get("group")) == group)]


def training_together(events: Sequence[Event], wanted: int) -> bool:
    """Return whether the newest commit of the job was made by at least `wanted` participants."""
    newest = commits(events)[-1:]
    return bool(newest) and int(newest[0].get("participants", 0)) >= wanted
