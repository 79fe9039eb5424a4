"""Which of a life's processes are stopped (SIGSTOP, a debugger), and since when. Pure: the looks are given, with their time."""

from __future__ import annotations

from collections.abc import Mapping

from torchft_x.timing import TIMING

STOPPED = ("T", "t")
"""States of /proc/PID/stat: stopped by a signal, stopped by a tracer."""


class StoppedProcesses:
    """What the looks have seen. Who watches may itself not have run for a while; that counts as a short gap."""

    def __init__(self) -> None:
        self._stopped: dict[int, float] = {}  # rank -> seconds it has been seen stopped
        self._turns: Mapping[int, int] = {}  # of those, at the last look
        self._looked: float | None = None  # time of the last look
        self._said: int | None = None  # the rank that was reported

    def look(self, stopped: Mapping[int, int], now: float) -> tuple[int | None, float] | None:
        """These ranks are stopped now, each with the turns it has had on a processor: one that has had another since
        the last look was going on in between. Returns what is to be reported, if it has changed: a rank and for how
        long it has been stopped, or (None, 0.0): none is any more."""
        gap = 0.0 if self._looked is None else min(now - self._looked, TIMING.stop_gap)
        self._looked = now
        still = {r for r, turns in stopped.items() if self._turns.get(r) == turns}
        self._stopped = {r: self._stopped[r] + gap if r in still else 0.0 for r in stopped}
        self._turns = stopped
        worst = max(self._stopped, key=lambda r: self._stopped[r], default=None)
        if self._said in still:
            return None
        if worst is not None and self._stopped[worst] >= TIMING.stop_report:
            self._said = worst
            return worst, self._stopped[worst]
        if self._said is None:
            return None
        self._said = None
        return None, 0.0
