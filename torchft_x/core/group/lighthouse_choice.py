"""Which of several lighthouses a client tries, how soon it tries again, and when it leaves one for the next.

* A lighthouse that was there is tried again for a moment when its session ends: most come back. One that can't be
  reached is left at once for the next.
* A lighthouse that says that the others may be at another one is left after a while. The first of the list is given
  more time than the others, and chance decides how much: two groups that wait at two lighthouses for each other meet
  there sooner or later. Without such a word a group stays where it is, also if the first lighthouse comes back.
"""

from __future__ import annotations

STAYS = 2.0
"""Seconds a group waits at a lighthouse that has said so, and up to twice that; twice as long at the first one."""
COMES_BACK = 3.0
"""Seconds a lighthouse is tried again whose session has ended."""
FIRST_PAUSE, NEAR_PAUSE, LAST_PAUSE = 0.05, 0.2, 1.0
"""Seconds between connects, less jitter: the first, and the longest in the first seconds and after them."""
NEAR = 5.0
"""How many seconds these first ones are."""


def pause(last: float | None, away: float) -> float:
    """Seconds until the next connect, after a pause of `last` seconds (None: a session has just ended) and `away`
    seconds without a session."""
    return FIRST_PAUSE if last is None else min(2 * last, NEAR_PAUSE if away < NEAR else LAST_PAUSE)


class FailoverPolicy:
    """Part of a client. Times in monotonic seconds."""

    def __init__(self, count: int, *, stays: float = STAYS, comes_back: float = COMES_BACK) -> None:
        self._count = count  # of lighthouses
        self._stays = stays  # see STAYS
        self._comes_back = comes_back  # see COMES_BACK
        self.at = 0  # number of the lighthouse it speaks to or tries
        self._ended_at: float | None = None  # when the session ended that it tries to have again; None: there was none
        self._leave_at: float | None = None  # when it goes to the next; None: it stays

    def __repr__(self) -> str:
        return f"<FailoverPolicy at {self.at} of {self._count}>"

    def up(self) -> None:
        """A session stands."""
        self._ended_at = self._leave_at = None

    def ended(self, now: float) -> None:
        """A session that stood is gone."""
        self._ended_at, self._leave_at = now, None

    def failed(self, now: float) -> None:
        """A connect failed, or its hello was not answered."""
        if self._ended_at is None or now - self._ended_at >= self._comes_back:
            self._next()

    def told(self, elsewhere: bool, now: float, chance: float) -> None:
        """The lighthouse says what it waits for. `chance`: from 0 to 1."""
        if not elsewhere or self._count < 2:
            self._leave_at = None
        elif self._leave_at is None:
            self._leave_at = now + self._stays * (1.0 + chance) * (2.0 if self.at == 0 else 1.0)

    def answered(self) -> None:
        """What it waited for has come."""
        self._leave_at = None

    def leaves(self, now: float) -> bool:
        """True: end the session; the next one is with the next lighthouse."""
        if self._leave_at is None or now < self._leave_at:
            return False
        self._next()
        return True

    def _next(self) -> None:
        self.at = (self.at + 1) % self._count
        self._ended_at = self._leave_at = None
