"""Extension of the deadlines of quorum calls while a group pauses.

The lighthouse reports pauses to the group servers. During a pause, a rank's deadline counts from the pause's end, so
that ranks which wait at the boundary for a group that evaluates don't fail.
"""

from __future__ import annotations

import concurrent.futures
from typing import Any

KEY = "torchft-x-paused"
"""Trailing metadata of a Quorum call that ended at its deadline during a pause. The client then asks again."""
_LOOK = 1.0  # seconds between checks, because a pause may end earlier than announced


class PauseClock:
    """Pauses that the lighthouse has reported to a group server. Used on the loop, except for `wait`."""

    def __init__(self) -> None:
        self._until: float | None = None  # end of the latest pause (own monotonic seconds); None: none was announced
        self.reason = ""  # the group that pauses, and why

    def announced(self, seconds: float, reason: str, now: float) -> None:
        """Record a pause of `seconds` from `now`. 0 ends it, and gives each waiting caller its full time-out again."""
        if seconds > 0:
            self._until, self.reason = now + seconds, reason
        elif self._until is not None:
            self._until, self.reason = min(self._until, now), ""

    def more(self, timeout: float, now: float) -> float:
        """Return the seconds that a caller with this time-out may still wait, on account of a pause."""
        return 0.0 if self._until is None else max(0.0, self._until + timeout - now)

    def wait(self, waiter: concurrent.futures.Future[Any], timeout: float, clock: Any) -> None:
        """Wait for an answer for `timeout` seconds, extended by pauses. Callable from any thread."""
        left = timeout
        while left > 0 and not waiter.done():
            concurrent.futures.wait([waiter], left)
            left = min(self.more(timeout, clock()), _LOOK)
