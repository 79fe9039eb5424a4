"""Record the newest decisions of a machine, each with its time and the event that caused it.

Actions of every step are not recorded.
"""

from __future__ import annotations

KEPT = 64
"""Number of decisions that a machine remembers."""


class DecisionLog:
    """Newest decisions of a machine, which sets `now` (monotonic seconds) and `event` to what it handles."""

    def __init__(self) -> None:
        self.now = 0.0
        self.event: object = None
        self._decisions: tuple[tuple[float, str], ...] = ()  # time, and cause and decision as a sentence

    def note(self, sentence: str) -> None:
        """Record a decision, and drop the oldest beyond `KEPT`."""
        self._decisions = (*self._decisions[1 - KEPT :], (self.now, f"{_cause(self.event)}: {sentence}"))

    def story(self, now: float) -> list[str]:
        """Return the decisions as lines, oldest first: ``2.1 s ago, Ask of rank 1: ...``."""
        return [f"{now - at:.1f} s ago, {decision}" for at, decision in self._decisions]


def _cause(event: object) -> str:
    """Return the event's name, with its subject if the event names one."""
    who = getattr(event, "replica_id", "") or getattr(event, "group", "")
    if not who and (rank := getattr(event, "rank", None)) is not None:
        who = f"rank {rank}"
    if not who and (member := getattr(event, "member", None)) is not None:
        who = member.replica_id
    return f"{type(event).__name__} of {who}" if who else type(event).__name__
