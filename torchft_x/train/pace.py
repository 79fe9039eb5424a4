"""How long a step takes: the lighthouse sizes grants by it, so that a newcomer waits about a second."""

from __future__ import annotations

_WEIGHT = 0.2  # of the newest step
_OUTLIER = 4.0  # a step counts as at most so many usual ones: a checkpoint's pause says nothing about the next


class Pace:
    """A smoothed time from the beginning of one step to the beginning of the next."""

    def __init__(self) -> None:
        self.seconds = 0.0  # 0: not known yet
        self._began: float | None = None  # when the step in hand began

    def begin(self, now: float) -> None:
        """A step begins. `now`: monotonic seconds."""
        if self._began is not None:
            took = now - self._began
            if self.seconds:
                took = min(took, self.seconds * _OUTLIER)
                self.seconds += _WEIGHT * (took - self.seconds)
            else:
                self.seconds = took
        self._began = now
