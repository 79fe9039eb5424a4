"""Notices changes in what the next lighthouse at this place must know (R8c). The shell writes them down.

A quorum, a grant and a lease are written down before they are sent, and so is the return of a lost member. A loss or an
end is written within a tick, because a lighthouse that does not know of it waits longer, and does nothing worse.
"""

from __future__ import annotations

from torchft_x.core.admission.finished_job import FinishedJob
from torchft_x.core.journal import Absent, Departure, JournalEntry, MemberEntry
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import LEFT, MemberRecord, MemberTable
from torchft_x.core.messages.lighthouse import Keep, LighthouseEffect
from torchft_x.core.types import Quorum
from torchft_x.timing import TIMING


class JournalWriter:
    """Decides when a journal entry is to be written, and what it says.

    Part of the lighthouse; shares its member table and quorum state.
    """

    def __init__(self, roll: MemberTable, tenure: QuorumState, endings: FinishedJob) -> None:
        self._roll = roll  # every known member
        self._tenure = tenure  # the present quorum
        self._hellos = 0  # number of hellos so far; each may change the kin
        self._kept: tuple[int, int, float] | None = None  # quorum id, granted step, end of sending leases, as last kept
        self._open: tuple[Quorum, ...] = ()  # kept with `_kept`
        self._endings = endings  # which members finish the job
        self._left: tuple[Departure, ...] = ()  # kept with `_kept`
        self._early: frozenset[str] = endings.early  # kept with `_kept`
        self._unsettled: frozenset[str] = endings.unsettled  # kept with `_kept`, as part of the kin
        self._kin: tuple[MemberEntry, ...] = ()  # kept with `_kept`; a new tuple only when an entry changes
        # What `_kin` was made from: config id, hellos, members of open quorums only, `unsettled`, `early`.
        self._kin_as_of: tuple[object, ...] = ()
        self._absent: dict[str, Absent] = {}  # kept with `_kept`, or to be kept now
        self._stale = False  # whether `_absent` is to be kept now

    def __repr__(self) -> str:
        return f"<JournalWriter {self._kept}>"

    def on_hello(self, record: MemberRecord) -> None:
        """Record that a member has a session again, on which it may be sent a lease."""
        self._hellos += 1
        if self._absent.pop(record.replica_id, None) is not None:
            self._stale = True

    def on_tick(self) -> None:
        """Update which members are lost, and with what proof."""
        lost = self._roll.lost(self._tenure.ran | self._endings.unsettled)
        if lost or self._absent:
            absent = {r.replica_id: Absent(r.replica_id, r.lease_sent, self._proof(r)) for r in lost}
            self._stale = self._stale or absent != self._absent
            self._absent = absent

    def look(self) -> list[LighthouseEffect]:
        """Return what to keep, if that is more than was kept. It must come before the effects that it is about."""
        tenure = self._tenure
        cur, granted, open_ = tenure.current, tenure.granted_through, tenure.chain.open
        if cur is None:
            return []
        leased = self._kept[2] if self._kept is not None else tenure.leased
        if tenure.leased > leased:
            leased = tenure.leased + TIMING.leased_ahead
        kept, left, early = (cur.id, granted, leased), self._endings.departures, self._endings.early
        unsettled = self._endings.unsettled
        known = open_ is self._open and early is self._early and unsettled is self._unsettled
        if kept == self._kept and known and left is self._left and not self._stale:
            return []
        if self._kept is None or cur.id != self._kept[0] or not known:
            self._look_at_kin(cur, open_)
        self._kept, self._open, self._left, self._early, self._stale = kept, open_, left, early, False
        self._unsettled = unsettled
        absent = tuple(self._absent.values())
        return [
            Keep(JournalEntry(cur, granted, self._kin, open_, absent, leased, tenure.reached, left, self._endings.job))
        ]

    def _look_at_kin(self, cur: Quorum, open_: tuple[Quorum, ...]) -> None:
        unsettled, early = self._endings.unsettled, self._endings.early
        as_of = (cur.config_id, self._hellos, self._tenure.chain.members - self._tenure.inside, unsettled, early)
        if as_of != self._kin_as_of:
            self._kin_as_of = as_of
            names = dict.fromkeys(m.replica_id for q in (cur, *open_) for m in q.members)
            records = self._roll.named((*names, *sorted(unsettled - names.keys())))
            self._kin = tuple(
                MemberEntry(r.replica_id, r.life, r.boot_id, r.runs_on, r.replica_id in early)
                for r in records
                if not r.unary
            )

    def _proof(self, record: MemberRecord) -> str:
        """Return the proof if it is final. An address that refused connections may accept the next one."""
        final = self._roll.has_ended(record.life) or record.proof == LEFT
        return record.proof if final else ""
