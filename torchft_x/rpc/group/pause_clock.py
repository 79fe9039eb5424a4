"""How much longer a quorum may take, because a group has announced a pause.

The lighthouse tells the group servers. A rank's deadline counts from the end of the pause then: who waits at the
boundary for a group that evaluates must not die of it.
"""

from __future__ import annotations

import concurrent.futures
from typing import Any

KEY = "torchft-x-paused"
"""Trailing metadata of a Quorum call that ended at its deadline while somebody pauses: ask again."""
_LOOK = 1.0  # seconds; a pause may end earlier than announced


class PauseClock:
    """What a group server has been told. On the loop, but for `wait`."""

    def __init__(self) -> None:
        self._until: float | None = None  # end of the latest pause, on our clock; None: none was announced
        self.reason = ""  # who pauses, and why

    def told(self, seconds: float, reason: str, now: float) -> None:
        """0 seconds: the pause is over, and whoever waits gets its own time once more."""
        if seconds > 0:
            self._until, self.reason = now + seconds, reason
        elif self._until is not None:
            self._until, self.reason = min(self._until, now), ""

    def more(self, timeout: float, now: float) -> float:
        """Seconds that a caller with this time-out may still wait; 0: no longer."""
        return 0.0 if self._until is None else max(0.0, self._until + timeout - now)

    def wait(self, waiter: concurrent.futures.Future[Any], timeout: float, clock: Any) -> None:
        """Wait for an answer until `timeout` is over, and the pauses with it. From any thread."""
        left = timeout
        while left > 0 and not waiter.done():
            concurrent.futures.wait([waiter], left)
            left = min(self.more(timeout, clock()), _LOOK)
