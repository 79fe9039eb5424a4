"""Decides what is said when a member is gone, and to whom.

A loss is told to every member that may stand in a collective with the lost one, so that nobody waits for a time-out
of the backend. The methods return effects, and remember what they need in the records and in the quorum state.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.failure_detector import suspect
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import MemberRecord, Standing
from torchft_x.core.messages.common import Note
from torchft_x.core.messages.lighthouse import LighthouseEffect, Probe, Refuse, RevokeQuorum

CAUSES = ("exited", "left", "refused", "silent", "straggler", "superseded", "unreachable")
"""Why nobody waits for a member any more, in one word. In this order: its supervisor has reported its exit; it said
goodbye; it was turned away; nothing was heard of it; it did not come to the boundary; a newer attempt of its
group is here; its address refuses connections."""
REFUSED = "it was refused"  # why a member that was turned away is lost; its heartbeats count for nothing
# Seconds within which several suspicions of one member cause a single probe.
_PROBE_PAUSE = 0.05


class LossHandler:
    """Marks members lost, ends their quorum, and probes suspected members.

    Part of the lighthouse; shares its member table and quorum state.
    """

    def __init__(self, config: LighthouseConfig, members: MemberTable, quorum_state: QuorumState) -> None:
        self._config = config
        self._members = members  # every known member
        self._quorum_state = quorum_state  # the present quorum

    def lose(
        self,
        record: MemberRecord,
        reason: str,
        cause: str,
        *,
        proof: str = "",
        late: bool = False,
        quietly: bool = False,
        left: str = "",
    ) -> list[LighthouseEffect]:
        """Mark this member lost, so that nobody waits for it, and tell the others if that is new.

        `cause`: one of `CAUSES`. `proof`, `late`: as for `MemberTable.lose`. `quietly`: it stood at a boundary, so no
        collective breaks. `left`: the words for a leave in good order; '': it did not leave so.
        """
        if not self._members.lose(record, reason, proof=proof, late=late):
            return []
        cur = self._quorum_state.current
        if cur is None or record.replica_id not in self._quorum_state.inside or quietly:
            return []
        text = f"{record.replica_id} has {left}." if left else f"{record.replica_id} is lost: {reason}."
        note = Note("member_lost", text, record.replica_id, cur.id, cause=cause)
        return [note, *self.end_quorum((record.replica_id,), text, spare=record, left=bool(left))]

    def end_quorum(
        self, lost: tuple[str, ...], reason: str, *, spare: MemberRecord, left: bool = False
    ) -> list[LighthouseEffect]:
        """Tell the present quorum's members but `spare` to leave its collectives now (R5).

        Members that have asked are out of them already, and members that are away are told when they come back.
        """
        cur = self._quorum_state.current
        if cur is None:
            return []
        self._quorum_state.broken = reason
        running = [
            r for r in map(self._members.get, sorted(self._quorum_state.missing)) if r is not None and r is not spare
        ]
        sessions = tuple(r.session for r in running if r.session is not None and self._quorum_state.holds_current(r))
        return [RevokeQuorum(sessions, cur.id, lost, reason, left)] if sessions else []

    def notify(self, record: MemberRecord, reason: str) -> list[LighthouseEffect]:
        """Tell one member, once, that its quorum is over and it must ask, because it was lost or missed something."""
        if record.notified or record.session is None:
            return []
        record.notified = True
        if record.lost:
            text = f"{record.replica_id} was taken for lost: {record.lost}."
            return [RevokeQuorum((record.session,), record.quorum_id, (record.replica_id,), text)]
        return [RevokeQuorum((record.session,), record.quorum_id, (), reason)]

    def refuse(self, record: MemberRecord, sentence: str) -> list[LighthouseEffect]:
        """Turn a member away for good: close its session, refuse its calls, and mark it lost."""
        session, calls = record.session, record.calls
        self._members.close(record)
        self._members.answer(record)
        effects: list[LighthouseEffect] = [Refuse(sentence, call=call) for call in calls]
        if session is not None:
            effects.append(Refuse(sentence, session=session))
        return effects + self.lose(record, REFUSED, "refused")

    def probe(self, record: MemberRecord, now: float) -> list[LighthouseEffect]:
        """Probe whether the member's address, if it is known, still accepts connections."""
        if not record.address:
            return []
        record.probed_at = now
        return [Probe(record.replica_id, record.address)]

    def look_after(self, suspects: Iterable[str], now: float) -> list[LighthouseEffect]:
        """Probe these members, to which another member's connection broke. If they are dead, their address refuses."""
        effects: list[LighthouseEffect] = []
        for suspected in map(self._members.get, suspects):
            if suspected is None or suspected.replica_id not in self._quorum_state.inside or suspected.lost:
                continue
            if suspected.probed_at is None or now - suspected.probed_at >= _PROBE_PAUSE:  # many may suspect one
                effects += self.probe(suspected, now)
        return effects

    def note_suspects(self, now: float) -> list[LighthouseEffect]:
        """Return a line for the log for each member that is silent though it runs, once."""
        notes: list[LighthouseEffect] = []
        limits = self._config.silence
        for record in self._members.silent(now, limits):
            known = record.standing is Standing.SUSPECTED
            text = "" if known else suspect(self._members.observation(record, limits, now), limits, now)
            if text:
                record.enter(Standing.SUSPECTED)
                notes.append(Note("suspect", f"{record.replica_id} {text}.", record.replica_id))
        return notes

    def on_probed(self, record: MemberRecord, refused: bool) -> list[LighthouseEffect]:
        """Mark the member lost if its address refused the probe, unless it was heard since the probe left.

        An accepted connect proves nothing. A refusal proves that the member is over only on the lighthouse's own boot.
        """
        if not refused or record.probed_at is None:
            return []
        record.refused = True
        same_host = bool(record.boot_id) and record.boot_id == self._config.boot_id
        reason = f"its address {record.address} refuses connections"
        return self.lose(record, reason, "unreachable", proof=reason if same_host else "")

    def is_over(self, record: MemberRecord, now: float) -> bool:
        """Return whether it is over (R9(b)), by the longest lease that the present quorum may have been sent with."""
        c, cur = self._config, self._quorum_state.current
        lease = max(c.lease, cur.lease if cur else 0.0) + c.lease_margin
        return record.is_over(now, lease=lease, alone=c.silence.alone)

    def is_given_up(self, record: MemberRecord, now: float) -> bool:
        """Return whether a new lineage may begin without the member's state.

        It must be over, and also proven to have ended, or away for `give_up_after` since its last lease. Clients of
        torchft, and members that were never sent a lease, need only be over.
        """
        if not self.is_over(record, now):
            return False
        known = record.proof or record.unary or record.lease_sent is None
        return bool(known) or now >= (record.lease_sent or 0.0) + self._config.give_up_after
