"""How long a rank waits for a quorum when its user has not said how long.

The usual time (a minute) is for what nobody can explain. It does not count while the lighthouse is away (that has a limit
of its own, three minutes), while it says what it waits for (whom it leaves behind, and when, is its decision), or while
ranks of one's own group have not asked: then a rank goes on waiting, up to its own last deadline (an hour). To give up
would end a healthy group, and with it the newest state perhaps, because another one is late.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.timing import TIMING


@dataclass(slots=True)
class _Wait:
    """One open call."""

    usual: float  # seconds
    spent: float = 0.0  # of these, so far
    away: float = 0.0  # seconds of it without a lighthouse


class QuorumDeadline:
    """Part of a group server. Times in monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._calls: dict[int, _Wait] = {}  # calls without a time of their own
        self._looked = now  # when time was last counted
        self._up_since: float | None = None  # when the session to the lighthouse came; None: it is away
        self._paused_until = now  # a group that is waited for has announced a pause until then
        self.reason = ""  # what the lighthouse waits for, as it said; '' if it has not, or nobody waits any more
        self.for_lease = False  # whether that may take until the end of a lease
        self._incomplete = False  # the group itself has not asked: ranks of it are missing

    def __repr__(self) -> str:
        return (
            f"<QuorumDeadline {len(self._calls)} calls, {'up' if self._up_since is not None else 'away'} {self.reason}>"
        )

    def begin(self, call: int, usual: float, now: float) -> None:
        """This call waits for a quorum, usually so long at the most."""
        self._count(max(now, self._looked))
        self._calls[call] = _Wait(usual)

    def end(self, call: int) -> None:
        """It has its answer, or has given up."""
        self._calls.pop(call, None)

    def session(self, up: bool, now: float) -> None:
        """The lighthouse is there, or is gone. What it said before has no meaning any more."""
        self._count(now)
        self._up_since = now if up else None
        self.reason, self.for_lease = "", False

    def told(self, reason: str, for_lease: bool, now: float) -> None:
        """The lighthouse says what it waits for."""
        self._count(now)
        self.reason, self.for_lease = reason, for_lease

    def incomplete(self, ranks_are_missing: bool, now: float) -> None:
        """Whether calls wait for other ranks of their own group."""
        if ranks_are_missing != self._incomplete:
            self._count(now)
            self._incomplete = ranks_are_missing

    def paused(self, seconds: float, now: float) -> None:
        """A group that is waited for pauses for so long; 0: it does no more."""
        self._count(now)
        self._paused_until = now + seconds

    def answered(self, now: float) -> None:
        """A quorum, or a grant: what it waited for has come."""
        self.told("", False, now)

    def expired(self, now: float) -> list[int]:
        """Calls whose usual time is over."""
        self._count(now)
        return [
            call
            for call, wait in self._calls.items()
            if wait.spent >= wait.usual or wait.away >= TIMING.lighthouse_away
        ]

    def _count(self, now: float) -> None:
        since, self._looked = self._looked, now
        if self._up_since is None:
            for wait in self._calls.values():
                wait.away += now - since
            return
        if self.reason or self._incomplete:
            return
        counted = now - max(since, self._up_since + TIMING.lighthouse_back, self._paused_until)
        if counted > 0:
            for wait in self._calls.values():
                wait.spent += counted
