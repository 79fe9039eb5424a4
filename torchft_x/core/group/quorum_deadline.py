"""Decide how long a rank waits for a quorum when its user has not set a time.

The usual time (a minute) is for waits without a known reason. It does not count in three cases:

* The lighthouse is away. That has its own limit of three minutes.
* The lighthouse says what it waits for. It decides then which members it leaves behind, and when.
* Other ranks of the same group have not asked.

A rank then goes on waiting, up to its own last deadline (an hour). Giving up would end a healthy group, perhaps with
the newest state, because another group is late.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.timing import TIMING


@dataclass(slots=True)
class _Wait:
    """The time that one open call has waited."""

    usual: float  # limit for `spent`, seconds
    spent: float = 0.0  # seconds that count towards `usual`
    away: float = 0.0  # seconds without a lighthouse


class QuorumDeadline:
    """The clock of a group server's open quorum calls. Times are in monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._calls: dict[int, _Wait] = {}  # open calls whose user has set no time
        self._looked = now  # time up to which the waits are counted
        self._up_since: float | None = None  # start of the session to the lighthouse; None: the lighthouse is away
        self._paused_until = now  # end of the pause that an awaited group has announced
        self.reason = ""  # what the lighthouse says it waits for; '' if it has not said, or nobody waits
        self.for_lease = False  # whether the lighthouse may wait until the end of a lease
        self._incomplete = False  # whether some ranks of this group have not asked yet

    def __repr__(self) -> str:
        return (
            f"<QuorumDeadline {len(self._calls)} calls, {'up' if self._up_since is not None else 'away'} {self.reason}>"
        )

    def begin(self, call: int, usual: float, now: float) -> None:
        """Start counting for `call`, which waits for a quorum for at most `usual` counted seconds."""
        self._count(max(now, self._looked))
        self._calls[call] = _Wait(usual)

    def end(self, call: int) -> None:
        """Forget `call`: it was answered, or has given up."""
        self._calls.pop(call, None)

    def session(self, up: bool, now: float) -> None:
        """Record that the session to the lighthouse has come up or gone down. The earlier reason is void."""
        self._count(now)
        self._up_since = now if up else None
        self.reason, self.for_lease = "", False

    def wait_notice(self, reason: str, for_lease: bool, now: float) -> None:
        """Record what the lighthouse says it waits for, and whether that may take until the end of a lease."""
        self._count(now)
        self.reason, self.for_lease = reason, for_lease

    def incomplete(self, ranks_are_missing: bool, now: float) -> None:
        """Record whether calls wait for other ranks of their own group."""
        if ranks_are_missing != self._incomplete:
            self._count(now)
            self._incomplete = ranks_are_missing

    def paused(self, seconds: float, now: float) -> None:
        """Record that an awaited group pauses for `seconds`; 0: its pause is over."""
        self._count(now)
        self._paused_until = now + seconds

    def answered(self, now: float) -> None:
        """Record that the lighthouse has sent a quorum or a grant, so that it waits for nothing any more."""
        self.wait_notice("", False, now)

    def expired(self, now: float) -> list[int]:
        """Return the calls whose usual time, or whose time without a lighthouse, is over."""
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
