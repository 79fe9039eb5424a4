"""Tracks announced silences: an evaluation, a checkpoint, a compile.

A member that pauses is waited for like a slow one; while the announced time runs its silence counts for nothing. The
members that wait for it, at the boundary or for the next quorum, are told how much longer that may take.
"""

from __future__ import annotations

from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import MemberRecord
from torchft_x.core.messages.common import Note
from torchft_x.core.messages.lighthouse import LighthouseEffect, Paused, SendPatience

LONGEST = 86400.0
"""Longest pause in seconds, a day; a longer one is cut to it."""


class PlannedPauses:
    """Records pauses, and tells the members that wait how long they take.

    Part of the lighthouse; shares its member table and quorum state.
    """

    def __init__(self, members: MemberTable, quorum_state: QuorumState) -> None:
        self._members = members  # every known member; a pause is in its record
        self._quorum_state = quorum_state  # its members wait for each other
        self._latest = float("-inf")  # end of the last pause; none has to be looked for after it

    def on_paused(self, event: Paused, now: float) -> list[LighthouseEffect]:
        """Record that a member announces a pause, or its end, and tell the members that wait."""
        record = self._members.on(event.session)
        if record is None:
            return []
        over, paused = event.seconds <= 0, now < record.pause_until
        if over and not paused:
            return []
        record.pause_until = min(record.pause_until, now) if over else now + min(event.seconds, LONGEST)
        record.pause_reason = event.reason
        self._latest = max(self._latest, record.pause_until)
        others = [r.session for r in self._members if r is not record and r.session is not None and self._waits(r)]
        text = f"{record.replica_id} pauses for up to {event.seconds:g} s: {event.reason}."
        notes: list[LighthouseEffect] = [Note("pause", text, record.replica_id)] if not over else []
        return notes + self._send(tuple(others), now)

    def notify(self, record: MemberRecord, now: float) -> list[LighthouseEffect]:
        """Tell a member that has begun to wait how long the pauses take."""
        return self._send((record.session,), now) if now < self._latest and record.session is not None else []

    def _waits(self, record: MemberRecord) -> bool:
        return record.join is not None or record.replica_id in self._quorum_state.inside

    def _send(self, sessions: tuple[int, ...], now: float) -> list[LighthouseEffect]:
        """Tell these sessions how long the longest pause of a member that is waited for still takes."""
        if not sessions:
            return []
        waited = [r for r in self._members if r.pause_until > now and not r.lost and self._waits(r)]
        longest = max(waited, key=lambda r: r.pause_until, default=None)
        if longest is None:
            return [SendPatience(sessions, 0.0, "")]
        reason = f"{longest.replica_id} pauses: {longest.pause_reason}"
        return [SendPatience(sessions, longest.pause_until - now, reason)]
