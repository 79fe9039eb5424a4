"""When a rank copies its state into memory that outlives it, where, and which copy a group goes on from.

A rank has two slots, each with room for one state. A copy goes into the slot that does not hold the newest complete one, so
one is always complete. All ranks of a group copy after the same steps, and none begins a copy before all have completed the
one before: then the newest copy that *all* ranks hold complete is never more than one copy old, and no rank has lost it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from torchft_x.core.types import State

COST = 0.02
"""Largest part of the time that copies may take."""
SHORTEST = 0.1
"""Seconds from one copy to the next at the least: what is fixed in a copy counts for tiny states."""


class CopySchedule:
    """When the next copy is due: what the last ones took, and will take again, stays within `cost` of the time.

    Times in monotonic seconds.
    """

    def __init__(self, cost: float = COST, shortest: float = SHORTEST) -> None:
        self._cost = cost
        self._shortest = shortest
        self._took = 0.0  # a copy, in seconds; one that was slow once is forgotten in a few
        self._next = 0.0  # when the next one is due

    def __repr__(self) -> str:
        return f"<CopySchedule {self._took:.3f} s each, due {self._next:.1f}>"

    def due(self, now: float) -> bool:
        return now >= self._next

    def copied(self, now: float, took: float) -> None:
        """A copy that took so many seconds of a processor has just ended."""
        self._took = max(took, (self._took + took) / 2)
        self._next = now + max(self._took / self._cost - self._took, self._shortest)


def slot_to_write(slots: Sequence[State | None]) -> int:
    """Which slot the next copy goes into. `slots`: what each holds complete, None for nothing."""
    return min(range(len(slots)), key=lambda i: (slots[i] is not None, slots[i] or State()))


def newest_common(ranks: Sequence[Sequence[State]]) -> State | None:
    """The newest state of which every rank of a group holds its part complete; None: there is none."""
    if not ranks:
        return None
    common = reduce(set.intersection, (set(states) for states in ranks))
    return max(common, default=None)
