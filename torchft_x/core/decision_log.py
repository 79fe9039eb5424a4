"""Record the newest decisions of a machine, each with its time and the event that caused it.

A machine holds them as a tuple and returns them as sentences (`story`). Actions of every step are not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT = 64
"""Number of decisions that a machine remembers."""


@dataclass(frozen=True, slots=True)
class Decision:
    at: float  # monotonic seconds
    cause: str  # name of an event in `core.messages`, with its subject
    sentence: str


def after(decisions: tuple[Decision, ...], now: float, event: object, sentence: str) -> tuple[Decision, ...]:
    """Return `decisions` with one more, which `event` has caused, and drop the oldest beyond `KEPT`."""
    return (*decisions[1 - KEPT :], Decision(now, _cause(event), sentence))


def story(decisions: tuple[Decision, ...], now: float) -> list[str]:
    """Return the decisions as lines, oldest first: ``2.1 s ago, Ask of rank 1: ...``."""
    return [f"{now - d.at:.1f} s ago, {d.cause}: {d.sentence}" for d in decisions]


def _cause(event: object) -> str:
    """Return the event's name, with its subject if the event names one."""
    who = getattr(event, "replica_id", "") or getattr(event, "group", "")
    if not who and (rank := getattr(event, "rank", None)) is not None:
        who = f"rank {rank}"
    if not who and (member := getattr(event, "member", None)) is not None:
        who = member.replica_id
    return f"{type(event).__name__} of {who}" if who else type(event).__name__
