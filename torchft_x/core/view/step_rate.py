"""How many steps a second the job makes, from the steps that members tell now and then."""

from __future__ import annotations

from collections import deque

WINDOW = 30.0
"""Seconds that count, as long as steps are told in them."""
_KEPT = 64  # changes


class StepRate:
    """Fed once a second or so; a step is told when a grant is half used, so it moves in leaps.

    The step at which the job is first seen does not count: until the next one, groups start, load and compile.
    """

    def __init__(self) -> None:
        self._newest: int | None = None
        self._told: deque[tuple[float, int]] = deque(maxlen=_KEPT)  # when a step was first seen

    def at(self, step: int, now: float) -> None:
        """The job stands at this step."""
        if self._newest is not None and step < self._newest:
            self._told.clear()  # a new lineage
        elif self._newest is not None and step > self._newest:
            self._told.append((now, step))
        self._newest = step
        while len(self._told) > 2 and now - self._told[1][0] > WINDOW:
            self._told.popleft()

    def per_second(self, now: float) -> float | None:
        """None: not known yet. Falls when nothing is told for longer than the usual leap takes."""
        if len(self._told) < 2:
            return None
        (first, begin), (last, end) = self._told[0], self._told[-1]
        leap = (last - first) / (len(self._told) - 1)
        over = max(last, now - 2 * leap)
        return (end - begin) / max(over - first, 1e-6)
