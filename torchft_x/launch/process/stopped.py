"""Detects which processes of an attempt are stopped (SIGSTOP, a debugger), and for how long. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from torchft_x.timing import TIMING

STOPPED = ("T", "t")
"""States in /proc/PID/stat: stopped by a signal, stopped by a tracer."""


class StoppedProcesses:
    """Times for which an attempt's processes have been seen stopped, from periodic observations.

    The observer itself may not have run for a while; such a gap counts for at most `TIMING.stop_gap` seconds.
    """

    def __init__(self) -> None:
        self._stopped: dict[int, float] = {}  # rank -> seconds it has been seen stopped
        self._turns: Mapping[int, int] = {}  # context switches of the stopped ranks at the last observation
        self._looked: float | None = None  # monotonic time of the last observation, in seconds
        self._reported: int | None = None  # rank last reported as stopped

    def poll(self, stopped: Mapping[int, int], now: float) -> tuple[int | None, float] | None:
        """Take an observation of the stopped ranks, and return a report if it has changed.

        `stopped` maps each rank that is stopped at `now` to its count of context switches: a rank whose count has grown
        since the last observation ran in between. The report is a rank and the seconds for which it has been stopped, or
        (None, 0.0) once no rank is.
        """
        gap = 0.0 if self._looked is None else min(now - self._looked, TIMING.stop_gap)
        self._looked = now
        still = {r for r, turns in stopped.items() if self._turns.get(r) == turns}
        self._stopped = {r: self._stopped[r] + gap if r in still else 0.0 for r in stopped}
        self._turns = stopped
        worst = max(self._stopped, key=lambda r: self._stopped[r], default=None)
        if self._reported in still:
            return None
        if worst is not None and self._stopped[worst] >= TIMING.stop_report:
            self._reported = worst
            return worst, self._stopped[worst]
        if self._reported is None:
            return None
        self._reported = None
        return None, 0.0
