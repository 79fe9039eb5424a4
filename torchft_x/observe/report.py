"""Evaluation of a run's events: its workers, the cost of each death, and a summary. Pure functions over `read_events`.

Times are unix seconds (`t`): the events of several processes of one host are compared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from torchft_x.core.types import listed
from torchft_x.observe.console import Story, groups, plural
from torchft_x.observe.events import incomplete, read_events

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A trainer process, as its Manager's `joined` event describes it."""

    group: str
    rank: int
    attempt: int
    pid: int
    t: float


@dataclass(frozen=True, kw_only=True)
class Death:
    """One kill and its cost. Times are seconds since the kill; None: it never happened."""

    group: str
    t: float  # unix seconds of the kill
    detected: float | None  # until the first survivor knew of it
    # Until the first commit of any survivor without it (a step that was all but done is none).
    next_commit: float | None
    rejoined: float | None  # until the first commit of the group's next attempt
    dropped: int  # steps the survivors dropped before that next commit; the same step counts once


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of a whole run."""

    steps: int
    restarts: int
    dropped: int
    lost: float  # seconds beyond a usual step, around deaths and drops
    undone: int = 0  # committed steps that were lost with all groups that held them
    incomplete: str = ""  # a clause that says why the other figures are unknown; '': they are known

    def __str__(self) -> str:
        if self.incomplete:
            return f"done: {plural(self.steps, 'step')} committed; restarts and drops are not known: {self.incomplete}"
        return (
            f"done: {plural(self.steps, 'step')} committed, {plural(self.restarts, 'restart')}, "
            f"{plural(self.dropped, 'step')} dropped, {self.lost:.2f} s lost"
            + (f"; {plural(self.undone, 'step')} lost with all groups that held them" if self.undone else "")
        )


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


def death(events: Sequence[Event], group: str, t: float, *, until: float = float("inf")) -> Death:
    """Return the cost of killing a process of `group` at unix time `t`. Events from `until` on are of later kills."""
    later = [e for e in events if t < float(e["t"]) < until]
    ours = [e for e in commits(events, group=group) if float(e["t"]) <= t]
    last_attempt = int(ours[-1].get("attempt", 0)) if ours else 0
    survivors = [e for e in later if e.get("role") == "trainer" and str(e.get("group")) != group]
    heard = [e for e in survivors if _tells_of(e, group)]
    together = max((int(e.get("participants", 0)) for e in ours[-1:]), default=0)
    without = [e for e in commits(survivors) if int(e.get("participants", 0)) < together]
    return Death(
        group=group,
        t=t,
        detected=_since(t, heard),
        next_commit=_since(t, without),
        rejoined=_since(t, [e for e in commits(later, group=group) if int(e.get("attempt", 0)) > last_attempt]),
        dropped=len({e.get("step") for e in survivors if e.get("event") == "drop"}),
    )


def summarize(events: Sequence[Event]) -> Summary:
    """Summarise a run. A dropped step counts once, however many groups dropped it."""
    made = commits(events)
    first = _first_attempts(events)
    restarts = {
        (group, attempt)
        for e in events
        if e.get("event") == "joined" and e.get("role") == "trainer"
        for group, attempt in [(str(e.get("group")), int(e.get("attempt", 0)))]
        if attempt > first.get(group, 0)
    }
    drops = {(e.get("step"), e.get("quorum")) for e in events if e.get("event") == "drop"}
    return Summary(
        steps=max((int(e.get("step", 0)) + 1 for e in made), default=0),
        restarts=len(restarts),
        dropped=len(drops),
        lost=_lost(made, [float(e["t"]) for e in events if e.get("event") in ("member_lost", "drop")]),
        undone=sum(int(e.get("steps", 0)) for e in events if e.get("event") == "new_lineage"),
    )


def _first_attempts(events: Sequence[Event]) -> dict[str, int]:
    """Return each group's first attempt, which is above 0 if the lighthouse knew the group from a run before."""
    first: dict[str, int] = {}
    for e in events:
        if e.get("attempt") is not None:
            group, attempt = str(e.get("group")), int(e["attempt"])
            first[group] = min(attempt, first.get(group, attempt))
    return first


def summary(story: Story, run_dir: str | os.PathLike[str] | None) -> Summary:
    """Summarise the whole run if its events are readable, else the part that this process has seen."""
    if run_dir is not None:
        found, cut = summarize(read_events(run_dir)), incomplete(run_dir)
        if found.steps >= story.step and not cut:
            return found
        log = listed(cut, 1) if cut else f"the event log in {os.path.join(run_dir, 'events')}"
        return replace(
            found,
            steps=max(found.steps, story.step),
            incomplete=f"{log} could not be written to its end (disk full?)",
        )
    return Summary(steps=story.step, restarts=story.rejoins, dropped=story.dropped, lost=story.lost)


def _tells_of(e: Event, group: str) -> bool:
    """Return whether a survivor's event shows its knowledge of the group's loss (at a boundary, a quorum does)."""
    if e.get("event") == "quorum":
        return group not in groups(e.get("members"))
    return e.get("event") == "abort" or group in groups(e.get("lost"))


def _since(t: float, events: Sequence[Event]) -> float | None:
    return float(events[0]["t"]) - t if events else None


def _lost(made: Sequence[Event], troubles: Sequence[float]) -> float:
    """Return the seconds beyond the usual gap, summed over the gaps between steps that contain one of `troubles`."""
    first: dict[int, float] = {}  # by step: time of the first commit
    for e in made:
        first.setdefault(int(e.get("step", 0)), float(e["t"]))
    times = sorted(first.values())
    gaps = list(pairwise(times))
    if not gaps:
        return 0.0
    usual = median(b - a for a, b in gaps)
    return sum(max(0.0, b - a - usual) for a, b in gaps if any(a <= t <= b for t in troubles))
