"""Speed of the job and of its groups: which ones are slower than the others, and steps per second. For people."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping

STEPS = 50
"""Number of steps over whose median a group is judged. So a compile, a checkpoint or an evaluation counts for nothing."""
SLOW, FINE = 1.30, 1.15
"""Times the others' own part of a step: above the first a group is named as slow, until it is below the second."""
WINDOW = 30.0
"""Window of the estimate in seconds, as long as steps are reported within it."""
_KEPT = 64  # most changes of the step that are kept


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
