"""Why a machine did that: its newest decisions, each with when it was made and the event that caused it.

A machine holds them as a tuple and hands them out as sentences (`story`). What it does in every step is no decision.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT = 64
"""Decisions that a machine remembers."""


@dataclass(frozen=True, slots=True)
class Decision:
    at: float  # monotonic seconds
    cause: str  # an event, by the name it has in `core.messages`
    sentence: str


def after(decisions: tuple[Decision, ...], now: float, event: object, sentence: str) -> tuple[Decision, ...]:
    """Return `decisions` with one more, which `event` has caused."""
    return (*decisions[1 - KEPT :], Decision(now, _cause(event), sentence))


def story(decisions: tuple[Decision, ...], now: float) -> list[str]:
    """Return them as lines, the oldest first: ``2.1 s ago, Ask of rank 1: ...``."""
    return [f"{now - d.at:.1f} s ago, {d.cause}: {d.sentence}" for d in decisions]


def _cause(event: object) -> str:
    """The event's name, and whom it is about where it says so."""
    who = getattr(event, "replica_id", "") or getattr(event, "group", "")
    if not who and (rank := getattr(event, "rank", None)) is not None:
        who = f"rank {rank}"
    if not who and (member := getattr(event, "member", None)) is not None:
        who = member.replica_id
    return f"{type(event).__name__} of {who}" if who else type(event).__name__
