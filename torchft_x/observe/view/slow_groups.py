"""Decide which groups are slower than the others, by their own part of a step. For the page and the report."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

STEPS = 50
"""Number of steps over whose median a group is judged. So a compile, a checkpoint or an evaluation counts for nothing."""
SLOW, FINE = 1.30, 1.15
"""Times the others' own part of a step: above the first a group is named as slow, until it is below the second."""


class SlowGroups:
    """Names of the groups that are slow. A group in between the two limits stays what it was."""

    def __init__(self) -> None:
        self._named: frozenset[str] = frozenset()

    def poll(self, own: Mapping[str, float]) -> dict[str, float]:
        """Return by which part each slow group is slower than the others (0.4: its steps take 1.4 times as long).

        `own` has the seconds of each present group's own part of a step, without its waits for others.
        """
        values, slow = sorted(own.values()), {}
        for name, seconds in own.items():
            rest, at = (len(values) - 1) // 2, bisect_left(values, seconds)
            others = values[rest + (rest >= at)] if len(values) > 1 else 0.0  # the (upper) median without this one
            if others > 0 and seconds >= others * (FINE if name in self._named else SLOW):
                slow[name] = seconds / others - 1
        self._named = frozenset(slow)
        return slow


def slower(part: float) -> str:
    """Return a clause for people."""
    return f"its own part of a step takes {part:.0%} longer than that of the others".replace("%", " %")
