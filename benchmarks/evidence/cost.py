"""The cost of a fault to a job on a cluster, computed from the job's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from tests.events import commits

Event = dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """Cost of one fault. Times in seconds."""

    pause: float
    """Longest time that a survivor went without a commit, less the usual time of a step."""
    whole: float | None
    """Seconds from the fault to the first commit of all groups in which the victim's next attempt takes part; None:
    there is none.
    """
    dropped: int
    """Number of steps that survivors began and didn't commit."""
    undone: int
    """Number of committed steps that were lost."""


def whole_at(events: Sequence[Event], victim: str, groups: int, t: float) -> float | None:
    """Return the time after `t` at which `groups` groups first committed together, or None.

    If there is a `victim`, another attempt of it takes part in that commit.
    """
    before = {e.get("replica_id") for e in commits(events, group=victim) if float(e["t"]) <= t}
    for e in commits(events):
        again = not victim or (str(e.get("group")) == victim and e.get("replica_id") not in before)
        if float(e["t"]) > t and again and int(e.get("participants", 0)) >= groups:
            return float(e["t"])
    return None


def pause(events: Sequence[Event], group: str, t: float, end: float = float("inf")) -> float:
    """Return the longest time in seconds between two commits of a group, from its last one before `t` until `end`."""
    times = [float(e["t"]) for e in commits(events, group=group)]
    seen = [max((x for x in times if x <= t), default=t), *(x for x in times if t < x <= end)]
    return max((b - a for a, b in pairwise(seen)), default=end - t)


def drops(events: Sequence[Event], groups: Sequence[str], t: float, end: float = float("inf")) -> list[Event]:
    """Return the events of these groups' dropped steps after `t`, until `end`."""
    within = (e for e in events if e.get("event") == "drop" and t < float(e["t"]) <= end)
    return [e for e in within if str(e.get("group")) in groups]


def median_and_worst(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(median(values), 2), "worst": max(values)}


def cost(
    events: Sequence[Event], victim: str, survivors: Sequence[str], t: float, whole: float | None, end: float
) -> Cost:
    """Return the cost of a fault at `t` against `victim`, over the events until `end`."""
    pauses = []
    for group in survivors:
        times = [float(e["t"]) for e in commits(events, group=group)]
        usual = median([b - a for a, b in pairwise(x for x in times if t - 5 < x <= t)] or [0.0])
        pauses.append(pause(events, group, t, end) - usual)
    within = [e for e in events if t < float(e["t"]) <= end]
    dropped = {e.get("step") for e in drops(events, survivors, t, end)}
    undone = sum(int(e.get("steps", 0)) for e in within if e.get("event") == "new_lineage")
    return Cost(max(pauses, default=0.0), None if whole is None else whole - t, len(dropped), undone)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with the number, medians and worst of each kind of fault.

    `rows`: the fields of `Cost`, and `fault`.
    """
    lines = [
        "| fault | n | pause of the survivors (s) | whole again (s) | steps dropped | undone |",
        "|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(r["fault"] for r in rows):
        mine = [r for r in rows if r["fault"] == kind]
        whole = [r["whole"] for r in mine if r["whole"] is not None]
        cells = [kind, str(len(mine)), _figures([r["pause"] for r in mine]), _figures(whole)]
        cells += [str(sum(r["dropped"] for r in mine)), str(sum(r["undone"] for r in mine))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figures(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{values[0]:.2f}" if len(values) == 1 else f"{median(values):.2f}, worst {max(values):.2f}"
