"""Members that wait for a quorum are told what the lighthouse waits for: so they know how long it may take.

Said to each member once, when it has waited for a moment; again as soon as it becomes (or ceases to be) the end of
a lease, and now and then when the reason has changed. `core.group.quorum_deadline` is what a group makes of it.
"""

from __future__ import annotations

from collections.abc import Collection

from torchft_x.core.messages.lighthouse import LighthouseEffect, SendWaits
from torchft_x.core.quorum.rule import Wait

_AGAIN = 5.0  # seconds between two words to one member that only say another reason


class WaitNotices:
    """Part of the lighthouse."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[Wait, float]] = {}  # session -> what it was told, and when

    def __repr__(self) -> str:
        return f"<WaitNotices told={sorted(self._told)}>"

    def tell(self, sessions: Collection[int], wait: Wait, now: float) -> list[LighthouseEffect]:
        """These wait now, and this is why. Who waits no more is forgotten."""
        told, self._told = self._told, {}
        due: list[int] = []
        for session in sessions:
            before, at = told.get(session, (None, now))
            same = before is not None and before.lease == wait.lease
            if before is not None and same and (now - at < _AGAIN or before.reason == wait.reason):
                self._told[session] = before, at
            else:
                self._told[session] = wait, now
                due.append(session)
        return [SendWaits(tuple(due), wait.reason, wait.lease)] if due else []
