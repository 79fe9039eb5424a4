"""Which of several lighthouses a client tries, how soon it tries again, and when it leaves one for the next.

One of them serves, the others say so or are away (`core.restart.lease`). A lighthouse that was there is tried again for a moment
when its session ends: most come back. One that can't be reached, or does not serve, is left at once for the next.
"""

from __future__ import annotations

from torchft_x.timing import TIMING


def pause(last: float | None, away: float) -> float:
    """Return the seconds until the next connect, before jitter, after a pause of `last` seconds (None: a session has just
    ended) and `away` seconds without a session."""
    longest = TIMING.reconnect_near if away < TIMING.reconnect_near_for else TIMING.reconnect_last
    return TIMING.reconnect_first if last is None else min(2 * last, longest)


class FailoverPolicy:
    """Part of a client. Times in monotonic seconds."""

    def __init__(self, count: int, *, comes_back: float = TIMING.comes_back) -> None:
        self._count = count  # of lighthouses
        self._comes_back = comes_back  # seconds
        self.at = 0  # number of the lighthouse it speaks to or tries
        self._ended_at: float | None = None  # when the session ended that it tries to have again; None: there was none

    def __repr__(self) -> str:
        return f"<FailoverPolicy at {self.at} of {self._count}>"

    def up(self) -> None:
        """A session stands."""
        self._ended_at = None

    def ended(self, now: float) -> None:
        """A session that stood is gone."""
        self._ended_at = now

    def failed(self, now: float) -> None:
        """A connect failed, or its hello was not answered."""
        if self._ended_at is None or now - self._ended_at >= self._comes_back:
            self.at = (self.at + 1) % self._count
            self._ended_at = None
