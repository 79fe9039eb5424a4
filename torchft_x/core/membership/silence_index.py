"""Who has been silent for a while, without a look at every one of ten thousand members at every tick.

Whoever spoke at some time can't have been silent for long soon after it. So it is enough to remember the first to have
spoken of those that had not been silent when all were looked at, and those that had.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchft_x.core.membership.members import MemberRecord


class SilenceIndex:
    """Part of the roll. Signs of life need not be told: they only make silences shorter."""

    def __init__(self, now: float) -> None:
        self._found: list[MemberRecord] = []  # who had been silent, or was stopped, when all were last looked at
        self._since = now  # nobody else that is waited for was last heard before this

    def __repr__(self) -> str:
        return f"<SilenceIndex {self._found}>"

    def expect(self, heard: float) -> None:
        """From now on somebody is waited for that was last heard at that time."""
        self._since = min(self._since, heard)

    def look(
        self, everybody: Iterable[MemberRecord], halted: Collection[str], now: float, limit: float
    ) -> list[MemberRecord]:
        """Of those waited for: silent for longer than this, or with a life token of `halted`. In their order."""
        if halted or now - self._since > limit:
            waited_for = [r for r in everybody if not r.lost]
            self._found = [r for r in waited_for if now - r.heard > limit or r.life.token in halted]
            self._since = min((r.heard for r in waited_for if now - r.heard <= limit), default=now)
        return [r for r in self._found if not r.lost and (now - r.heard > limit or r.life.token in halted)]
