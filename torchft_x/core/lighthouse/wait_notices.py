"""Tells members that wait for a quorum what the lighthouse waits for, so that they know how long it may take.

Each member is told once, when it has waited for a moment. It is told again as soon as the wait begins, or ceases, to
be for the end of a lease. When only the reason has changed it is told at most every few seconds.
`core.group.quorum_deadline` decides what a group makes of it.
"""

from __future__ import annotations

from collections.abc import Collection

from torchft_x.core.messages.lighthouse import LighthouseEffect, SendWaits
from torchft_x.core.quorum.rule import Wait

_AGAIN = 5.0  # least seconds between two notices to one member that differ only in the reason


class WaitNotices:
    """The notices that waiting members have been sent. Part of the lighthouse."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[Wait, float]] = {}  # session -> the wait that it was told, and when

    def __repr__(self) -> str:
        return f"<WaitNotices told={sorted(self._sent)}>"

    def notify(self, sessions: Collection[int], wait: Wait, now: float) -> list[LighthouseEffect]:
        """Tell these sessions, the only ones that wait now, why they wait, where that is due. Forget all others."""
        sent, self._sent = self._sent, {}
        due: list[int] = []
        for session in sessions:
            before, at = sent.get(session, (None, now))
            same = before is not None and before.lease == wait.lease
            if before is not None and same and (now - at < _AGAIN or before.reason == wait.reason):
                self._sent[session] = before, at
            else:
                self._sent[session] = wait, now
                due.append(session)
        return [SendWaits(tuple(due), wait.reason, wait.lease)] if due else []
