"""Table of the members: their records, sessions and attempts, and all changes of who is lost.

The quorum state counts members by their losses and joins. It is told of every change here, and nobody else makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torchft_x.core.journal import Absent, MemberEntry
from torchft_x.core.membership.failure_detector import Observation, SilenceLimits, judge
from torchft_x.core.membership.record import LEFT, MemberRecord
from torchft_x.core.membership.supervisors import SupervisorLiveness
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.quorum import Candidate
from torchft_x.core.types import AttemptId, Member, Quorum, group_number, group_of


class MemberTable:
    """Table of all known members: their records, their sessions, and the order of each group's attempts."""

    def __init__(self, now: float) -> None:
        self._records: dict[str, MemberRecord] = {}  # replica id -> record
        # Open session -> its member; without sessions that were replaced.
        self._sessions: dict[int, MemberRecord] = {}
        # Group id -> order of its newest attempt, and that attempt's replica id.
        self._newest: dict[str, tuple[tuple[int, float], str]] = {}
        self._begun: dict[str, int] = {}  # group as its supervisor names it -> highest number that it has reported
        self._fenced: dict[str, str] = {}  # superseded replica id -> the newer one; never forgotten
        self._ended: set[str] = set()  # attempt tokens whose process has exited
        self._made = 0  # number of records made so far
        self._last_tick = now  # to notice when the lighthouse itself was not scheduled
        self.supervisors = SupervisorLiveness()  # what supervisors say about the members
        self.suspect_boot_id = ""  # of a host that is silent since its lighthouse served, until a member there is heard
        self.on_change: Callable[[MemberRecord], None] = lambda record: None  # keeps the quorum state's counts right

    def __iter__(self) -> Iterator[MemberRecord]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def get(self, replica_id: str) -> MemberRecord | None:
        return self._records.get(replica_id)

    def records_of(self, members: Iterable[Member]) -> list[MemberRecord]:
        """Return the records of these members; without members that are not known."""
        records = self._records
        return [records[m.replica_id] for m in members if m.replica_id in records]

    def named(self, names: Iterable[str]) -> list[MemberRecord]:
        """Return the records of these replica ids; without ids that are not known."""
        records = self._records
        return [records[name] for name in names if name in records]

    def on(self, session: int) -> MemberRecord | None:
        """Return the member of this session; None for sessions that were replaced, fenced or never said hello."""
        return self._sessions.get(session)

    def ensure(self, replica_id: str, heard: float, *, unary: bool) -> MemberRecord:
        record = self._records.get(replica_id)
        if record is None:
            self._made += 1
            record = MemberRecord(replica_id, heard, self._made, unary=unary)
            self._records[replica_id] = record
            self.on_change(record)
        return record

    # --- sessions and calls --------------------------------------------------------------------------------------

    def open(self, hello: Hello, now: float) -> MemberRecord:
        """Open a new session of a member. It replaces the older one, and drops the older one's join (R3)."""
        record = self.ensure(hello.replica_id, now, unary=False)
        self.close(record)
        record.receive(now)
        record.unary = False
        record.attempt_id = hello.attempt_id
        record.address = hello.address
        record.boot_id = hello.boot_id
        if hello.boot_id == self.suspect_boot_id:
            self.suspect_boot_id = ""
        record.runs_on = hello.runs_on
        record.quorum_id = hello.quorum.id if hello.quorum else 0
        record.session = hello.session
        record.notified = False  # what was sent on the older stream may not have arrived
        if record.proof != LEFT:  # an attempt whose exit was reported is refused before
            record.disprove()
        self._sessions[hello.session] = record
        self.on_change(record)
        return record

    def restore(self, entry: MemberEntry, now: float) -> None:
        """Restore a member that spoke to the lighthouse before this one (R8c), so that its death can be reported."""
        record = self.ensure(entry.replica_id, now, unary=False)
        record.attempt_id, record.boot_id, record.runs_on = entry.attempt_id, entry.boot_id, entry.runs_on
        group, order = group_of(entry.replica_id), _order(entry.attempt_id)
        newest = self._newest.get(group)
        if newest is None or newest[0] < order:
            self._newest[group] = (order, entry.replica_id)

    def restore_absent(self, absent: Absent, now: float) -> MemberRecord | None:
        """Restore what the lighthouse before this one knew of a lost member. Return its record, or None if unknown."""
        record = self._records.get(absent.replica_id)
        if record is not None and absent.leased is not None:
            record.lease_sent = min(absent.leased, now)
        if record is not None and absent.proof:
            self.lose(record, absent.proof, proof=absent.proof)
            if absent.proof != LEFT:
                self._ended.add(record.attempt_id.token)
        return record

    def lost_without_session(self, names: frozenset[str]) -> list[MemberRecord]:
        """Return those of these members that have no session and that nobody waits for."""
        return [r for r in self if r.lost and r.session is None and r.replica_id in names and not r.unary]

    def close(self, record: MemberRecord) -> None:
        """Close the member's session, and drop its join with it (R3)."""
        if record.session is not None:
            self._sessions.pop(record.session, None)
            record.session = None
        self.withdraw(record)

    def call(self, record: MemberRecord, call: int) -> None:
        """Record one more open unary request of this member."""
        record.calls = (*record.calls, call)

    def hang_up(self, call: int) -> None:
        """Drop this unary request, which is gone, and its member's join with the last one."""
        for record in [r for r in self if call in r.calls]:
            record.calls = tuple(c for c in record.calls if c != call)
            record.join = record.join if record.calls else None
            self.on_change(record)

    def answer(self, record: MemberRecord) -> None:
        """Drop all unary requests of this member, because they are answered."""
        record.calls = ()

    # --- losses and joins ----------------------------------------------------------------------------------------

    def ask(self, record: MemberRecord, candidate: Candidate, number: int = 0) -> None:
        """Record a join, which disproves that the member is over. If nobody waits for it, that takes `find` to change."""
        record.join, record.number = candidate, number
        record.proof, record.notified = "", False
        self.on_change(record)

    def withdraw(self, record: MemberRecord) -> None:
        """Drop the member's join, if there is one: a grant answers it, or its session has ended."""
        record.join = None
        self.on_change(record)

    def lose(self, record: MemberRecord, reason: str, *, proof: str = "", late: bool = False) -> bool:
        """Record that nobody waits for the member any more. Return whether that is new.

        `proof`: why it is over, too (R9b); '': it may not be. `late`: it is left out (R20).
        """
        record.proof = record.proof or proof
        newly = not record.lost
        if newly:
            record.lost, record.late = reason, late
            record.suspected = record.notified = False
        self.on_change(record)
        return newly

    def find(self, record: MemberRecord) -> None:
        """Record that the member is waited for, also if it was lost or late."""
        record.lost, record.late = "", False
        self.on_change(record)

    def issue(self, quorum: Quorum, now: float) -> list[MemberRecord]:
        """Answer the joins of the quorum's members with it; their leases begin. Return their records, not yet counted."""
        records, pace = self.records_of(quorum.members), (quorum.top.step, now)  # before that the members waited
        for record in records:
            record.join, record.calls = None, ()
            record.quorum_id = quorum.id
            record.lease_sent = now
            record.pace = pace
        return records

    def adopt(self, member: Member, heard: float, leased: float) -> None:
        """Record a member of a quorum that is taken over (R8). A lease was last sent to it at `leased`."""
        record = self.ensure(member.replica_id, heard, unary=not member.library)
        record.address = record.address or member.address
        record.lease_sent = leased
        self.on_change(record)

    # --- attempts ---------------------------------------------------------------------------------------------------

    def superseded_by(self, hello: Hello) -> str:
        """Return the replica id of a newer attempt of this group that has been heard (R2); '': there is none."""
        if hello.replica_id in self._fenced:
            return self._fenced[hello.replica_id]
        newest = self._newest.get(group_of(hello.replica_id))
        if newest is not None and newest[1] != hello.replica_id and _order(hello.attempt_id) < newest[0]:
            return newest[1]
        return ""

    def supersede(self, hello: Hello) -> MemberRecord | None:
        """Make this the newest attempt of its group. Return the record of the attempt that it fences, if any (R2)."""
        group = group_of(hello.replica_id)
        older = self._newest.get(group)
        self._newest[group] = (_order(hello.attempt_id), hello.replica_id)
        if older is None or older[1] == hello.replica_id:
            return None
        self._fenced[older[1]] = hello.replica_id
        return self._records.get(older[1])

    def begun(self, group: str, attempt: int) -> None:
        """Record an attempt that its supervisor has reported. It may never say hello."""
        self._begun[group] = max(attempt, self._begun.get(group, attempt))

    def next_attempt(self, group: str) -> int:
        """Return the number for the next attempt of this group, as its supervisor names the group.

        It is above that of every attempt heard of, so that nothing fences the attempt.
        """
        newest = [
            attempt
            for name, ((attempt, _), replica_id) in self._newest.items()
            if group in (name, str(group_number(replica_id)))
        ]
        return max([self._begun.get(group, -1), *newest]) + 1

    def of_attempt(self, token: str) -> list[MemberRecord]:
        """Return the records of the members that carry this attempt token, usually one."""
        return [r for r in self if r.attempt_id.token == token] if token else []

    def end(self, token: str) -> list[MemberRecord]:
        """Record that the process with this attempt token has exited. Return the records of that attempt."""
        if not token:
            return []
        self._ended.add(token)
        self.supervisors.end(token)
        return self.of_attempt(token)

    def has_ended(self, attempt_id: AttemptId) -> bool:
        return attempt_id.token in self._ended

    # --- time ----------------------------------------------------------------------------------------------------

    def forgive(self, now: float, tick: float) -> float:
        """Shift every last sign of life if ticks came late: the lighthouse was starved, and the silence was its own.

        Return the seconds forgiven.
        """
        gap = now - self._last_tick
        self._last_tick = now
        if gap <= 2 * tick:
            return 0.0
        for record in self:
            record.heard = min(now, record.heard + gap - tick)
        self.supervisors.forgive(gap - tick, now)
        return gap - tick

    def observation(self, record: MemberRecord, limits: SilenceLimits, now: float) -> Observation:
        """Return what is known of a member's signs of life."""
        token = record.attempt_id.token
        watched = None if record.unary else self.supervisors.heard(token)
        if watched is None and record.boot_id and record.boot_id == self.suspect_boot_id:
            watched = record.heard  # its host has let a lease run out, so its supervisor is silent, too
        stopped = self.supervisors.stopped_of(token, now - limits.host)
        connected = record.session is not None
        return Observation(record.heard, watched, stopped, connected, record.longest_step, record.pause_until)

    def silent(self, now: float, limits: SilenceLimits) -> list[MemberRecord]:
        """Return the members to check more closely: silent for a while, or stopped."""
        stopped, since = self.supervisors.stopped, now - limits.shortest
        return [r for r in self if not r.lost and (r.heard < since or r.attempt_id.token in stopped)]

    def newly_lost(self, now: float, limits: SilenceLimits) -> list[tuple[MemberRecord, str]]:
        """Return the members that have just run out of time, each with the reason."""
        judged = [(r, judge(self.observation(r, limits, now), limits, now)) for r in self.silent(now, limits)]
        return [(r, reason) for r, reason in judged if reason]

    def away(self, inside: frozenset[str]) -> list[MemberRecord]:
        """Return those of these replica ids that have no session and no proof of death: they may or may not be dead."""
        return [r for r in self if r.session is None and r.replica_id in inside and not r.unary and not r.proof]

    def prune(self, keep: frozenset[str], since: float) -> None:
        """Forget lost members that nobody will ask about again.

        A client of torchft is kept while its heartbeats come (last after `since`): the next one would make it anew, and
        it would be waited for though it was refused.
        """
        for r in [r for r in self if r.lost and r.session is None and not r.calls and r.replica_id not in keep]:
            if not r.unary or r.heard < since:
                del self._records[r.replica_id]


def _order(attempt_id: AttemptId) -> tuple[int, float]:
    """Return what orders attempts: number, then start.

    Of two that are equal the one heard later is newer; the random token decides nothing (R2).
    """
    return (attempt_id.number, attempt_id.started)
