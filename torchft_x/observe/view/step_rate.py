"""Estimate the job's steps per second from the steps that members report now and then."""

from __future__ import annotations

from collections import deque

WINDOW = 30.0
"""Window of the estimate in seconds, as long as steps are reported within it."""
_KEPT = 64  # most changes of the step that are kept


class StepRate:
    """Estimate of the steps per second, fed about once a second.

    Members report a step when a grant is half used, so the step moves in leaps. The first step seen does not count:
    until the next one, groups start, load and compile.
    """

    def __init__(self) -> None:
        self._newest: int | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=_KEPT)  # (time, step): when a step was first seen

    def at(self, step: int, now: float) -> None:
        """Record that the job is at `step`."""
        if self._newest is not None and step < self._newest:
            self._samples.clear()  # a new lineage
        elif self._newest is not None and step > self._newest:
            self._samples.append((now, step))
        self._newest = step
        while len(self._samples) > 2 and now - self._samples[1][0] > WINDOW:
            self._samples.popleft()

    def per_second(self, now: float) -> float | None:
        """Return the steps per second; None: not known yet. The rate falls when no step comes for two usual leaps."""
        if len(self._samples) < 2:
            return None
        (first, begin), (last, end) = self._samples[0], self._samples[-1]
        leap = (last - first) / (len(self._samples) - 1)
        over = max(last, now - 2 * leap)
        return (end - begin) / max(over - first, 1e-6)
