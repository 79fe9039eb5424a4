"""Members that wait for a quorum are told what the lighthouse waits for: so they know how long it may take.

Said to each member once, when it has waited for a moment; again as soon as it becomes (or ceases to be) the end of
a lease, and now and then when the reason has changed. `core.endurance` is what a group makes of it.
"""

from __future__ import annotations

from collections.abc import Collection

from torchft_x.core.formation import Wait
from torchft_x.core.messages import LighthouseEffect, SendWaits

_AGAIN = 5.0  # seconds between two words to one member that only say another reason


class Waits:
    """Part of the lighthouse."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[Wait, float]] = {}  # session -> what it was told, and when

    def __repr__(self) -> str:
        return f"<Waits told={sorted(self._told)}>"

    def tell(self, sessions: Collection[int], wait: Wait, now: float) -> list[LighthouseEffect]:
        """These wait now, and this is why. Who waits no more is forgotten."""
        self._told = {s: self._told[s] for s in sessions if s in self._told}
        due = tuple(s for s in sessions if self._is_due(self._told.get(s), wait, now))
        self._told.update(dict.fromkeys(due, (wait, now)))
        return [SendWaits(due, wait.reason, wait.lease, wait.elsewhere)] if due else []

    @staticmethod
    def _is_due(told: tuple[Wait, float] | None, wait: Wait, now: float) -> bool:
        if told is None or told[0].lease != wait.lease or told[0].elsewhere != wait.elsewhere:
            return True
        return told[0].reason != wait.reason and now - told[1] >= _AGAIN
