"""Choose which of several lighthouses a client tries, how soon it tries again, and when it moves on to the next.

One lighthouse serves; the others answer that they don't, or are away (`core.lighthouse.lease`). When a session ends, the
client tries the same lighthouse again for a moment, because most come back. It leaves a lighthouse that can't be
reached, or does not serve, at once.
"""

from __future__ import annotations

from torchft_x.timing import TIMING


def pause(last: float | None, away: float) -> float:
    """Return the seconds until the next connect, before jitter.

    `last` is the pause before, None if a session has just ended; `away` is the time without a session. In seconds."""
    longest = TIMING.reconnect_near if away < TIMING.reconnect_near_for else TIMING.reconnect_last
    return TIMING.reconnect_first if last is None else min(2 * last, longest)


class FailoverPolicy:
    """The choice of one client among several lighthouses. Times are in monotonic seconds."""

    def __init__(self, count: int, *, comes_back: float = TIMING.comes_back) -> None:
        self._count = count  # number of lighthouses
        self._comes_back = comes_back  # seconds for which a lighthouse whose session has ended is tried again
        self.at = 0  # index of the lighthouse that the client is connected to or tries
        self._ended_at: float | None = None  # end of the last session, while the client tries to restore it; else None

    def __repr__(self) -> str:
        return f"<FailoverPolicy at {self.at} of {self._count}>"

    def up(self) -> None:
        """Record that a session is established."""
        self._ended_at = None

    def ended(self, now: float) -> None:
        """Record that an established session has ended."""
        self._ended_at = now

    def failed(self, now: float) -> None:
        """Record that a connect failed or its hello was not answered, and move on if the time to come back is over."""
        if self._ended_at is None or now - self._ended_at >= self._comes_back:
            self.at = (self.at + 1) % self._count
            self._ended_at = None
