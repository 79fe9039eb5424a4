"""Detects changes of the facts that the job's next lighthouse must know (R8c). The shell writes them to the journal.

A quorum, a grant and a lease are written before they are sent, and so is the return of a lost member. A loss or an end is
written within a tick, because a lighthouse that does not know of it waits longer, which is harmless.
"""

from __future__ import annotations

from torchft_x.core.admission.finished_job import FinishedJob
from torchft_x.core.journal import Absent, Departure, JournalEntry, MemberEntry
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import LEFT, MemberRecord
from torchft_x.core.messages.lighthouse import Keep, LighthouseEffect
from torchft_x.core.types import Quorum
from torchft_x.timing import TIMING


class JournalWriter:
    """Decides when a journal entry is to be written, and what it says.

    Part of the lighthouse; shares its member table and quorum state.
    """

    def __init__(self, members: MemberTable, quorum_state: QuorumState, finished_job: FinishedJob) -> None:
        self._members = members  # every known member
        self._quorum_state = quorum_state  # the present quorum
        self._hellos = 0  # number of hellos so far; each may change the members
        self._kept: tuple[int, int, float] | None = None  # quorum id, granted step, end of sending leases, as last kept
        self._open: tuple[Quorum, ...] = ()  # kept with `_kept`
        self._finished_job = finished_job  # which members finish the job
        self._left: tuple[Departure, ...] = ()  # kept with `_kept`
        self._early: frozenset[str] = finished_job.early  # kept with `_kept`
        self._unreported: frozenset[str] = finished_job.unreported  # kept with `_kept`, as part of the members
        self._entries: tuple[MemberEntry, ...] = ()  # kept with `_kept`; a new tuple only when an entry changes
        # What `_entries` was made from: config id, hellos, members of open quorums only, `unreported`, `early`.
        self._entries_as_of: tuple[object, ...] = ()
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
        lost = self._members.lost_without_session(self._quorum_state.ran | self._finished_job.unreported)
        if lost or self._absent:
            absent = {r.replica_id: Absent(r.replica_id, r.lease_sent, self._proof(r)) for r in lost}
            self._stale = self._stale or absent != self._absent
            self._absent = absent

    def poll(self) -> list[LighthouseEffect]:
        """Return what to keep, if that is more than was kept. It must come before the effects that it is about."""
        quorum_state = self._quorum_state
        cur, granted, open_ = quorum_state.current, quorum_state.granted_through, quorum_state.chain.open
        if cur is None:
            return []
        leased = self._kept[2] if self._kept is not None else quorum_state.leased
        if quorum_state.leased > leased:
            leased = quorum_state.leased + TIMING.leased_ahead
        kept, left, early = (cur.id, granted, leased), self._finished_job.departures, self._finished_job.early
        unreported = self._finished_job.unreported
        known = open_ is self._open and early is self._early and unreported is self._unreported
        if kept == self._kept and known and left is self._left and not self._stale:
            return []
        if self._kept is None or cur.id != self._kept[0] or not known:
            self._update_entries(cur, open_)
        self._kept, self._open, self._left, self._early, self._stale = kept, open_, left, early, False
        self._unreported = unreported
        absent, reached, job = tuple(self._absent.values()), quorum_state.reached, self._finished_job.job
        return [Keep(JournalEntry(cur, granted, self._entries, open_, absent, leased, reached, left, job))]

    def _update_entries(self, cur: Quorum, open_: tuple[Quorum, ...]) -> None:
        unreported, early = self._finished_job.unreported, self._finished_job.early
        as_of = (
            cur.config_id,
            self._hellos,
            self._quorum_state.chain.members - self._quorum_state.inside,
            unreported,
            early,
        )
        if as_of != self._entries_as_of:
            self._entries_as_of = as_of
            names = dict.fromkeys(m.replica_id for q in (cur, *open_) for m in q.members)
            records = self._members.named((*names, *sorted(unreported - names.keys())))
            self._entries = tuple(
                MemberEntry(r.replica_id, r.attempt_id, r.boot_id, r.runs_on, r.replica_id in early)
                for r in records
                if not r.unary
            )

    def _proof(self, record: MemberRecord) -> str:
        """Return the proof if it is final. An address that refused connections may accept the next one."""
        final = self._members.has_ended(record.attempt_id) or record.proof == LEFT
        return record.proof if final else ""
