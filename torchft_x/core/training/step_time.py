"""How long a step takes: the lighthouse sizes grants by it, so that a newcomer waits about a second."""

from __future__ import annotations

_ENOUGH = 3  # steps before anything is said: one that was short by chance would be granted a hundred times
_WEIGHT = 0.2  # of the newest step, once as many have been seen that it is less than an equal share
_OUTLIER = 4.0  # a step counts as at most so many usual ones: a checkpoint's pause says nothing about the next


class StepTimeEstimate:
    """A smoothed time from the beginning of one step to the beginning of the next."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of a usual step; 0: not known yet
        self._smooth = 0.0  # seconds
        self._seen = 0  # steps
        self._began: float | None = None  # when the step in hand began

    def __repr__(self) -> str:
        return f"<StepTimeEstimate {self._smooth:.3g} s, {self._seen} steps>"

    def begin(self, now: float) -> None:
        """A step begins. `now`: monotonic seconds."""
        if self._began is not None:
            took = now - self._began
            if self._seen:
                took = min(took, self._smooth * _OUTLIER)
            self._seen += 1
            self._smooth += max(1 / self._seen, _WEIGHT) * (took - self._smooth)
            self.seconds = self._smooth if self._seen >= _ENOUGH else 0.0
        self._began = now
