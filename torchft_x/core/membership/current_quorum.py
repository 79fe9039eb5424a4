"""The lighthouse's present quorum, the older ones that are still open, and the members that ask for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import inf

from torchft_x.core.in_doubt import settle
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import MemberRecord
from torchft_x.core.quorum import Candidate, Form, QuorumInputs
from torchft_x.core.types import Member, Quorum, State, group_names
from torchft_x.timing import TIMING


class OpenQuorums:
    """Table of the quorums before the present one that must be followed, too (R9): their members may not have left them.

    A quorum that is issued may reach only a few of its members, or none. Nothing is committed in it then, but it counts as
    the present one. A member of it that was never in the quorum before may carry it, and could go on alone. All members of
    the quorum before could then still report truthfully that they know nothing newer. A lighthouse without memory would
    believe them (R8), and there would be two histories. The lighthouse that issued both needs the table, too. Say
    q1 = {a, b} and q2 = {a, c} never reaches a, which loses its session, withdraws its join and runs on with b in q1
    (R16). Then c alone could follow q2. So a quorum stays *open* until one of its members is known to have received a
    newer one, or all are over. The table is nearly always empty, or holds one for the time of a step.
    """

    def __init__(self) -> None:
        self.open: tuple[Quorum, ...] = ()  # a new tuple exactly when the open quorums change
        self._open: tuple[tuple[Quorum, frozenset[str]], ...] = ()  # each with its members' replica ids
        self.members: frozenset[str] = frozenset()  # replica ids in any open quorum

    def __repr__(self) -> str:
        return f"<OpenQuorums {[q.number for q in self.open]}>"

    def begin(self, older: Iterable[Quorum] = ()) -> None:
        """Start with `older`: the quorums, before the one taken over, that a lighthouse without memory knows of."""
        self.open, self._open, self.members = (), (), frozenset()
        for quorum in older:
            self.leave(quorum)

    def leave(self, quorum: Quorum) -> None:
        """Open this quorum, because another one is issued after it."""
        self._keep((*self._open, (quorum, frozenset([m.replica_id for m in quorum.members]))))

    def received(self, replica_id: str, quorum_id: int) -> None:
        """Drop older open quorums of this member: it has received a newer one, and can't report them as its newest."""
        if self._open and replica_id in self.members:
            self._keep(tuple([x for x in self._open if x[0].id >= quorum_id or replica_id not in x[1]]))

    def close(self, is_over: Callable[[str], bool]) -> None:
        """Drop open quorums whose members are all over: nobody can report them with a valid lease any more."""
        if self._open:
            self._keep(tuple([x for x in self._open if not all(map(is_over, x[1]))]))

    def _keep(self, quorums: tuple[tuple[Quorum, frozenset[str]], ...]) -> None:
        if len(quorums) != len(self._open):
            self.open, self._open = tuple([q for q, _ in quorums]), quorums
            self.members = frozenset().union(*[members for _, members in quorums])


class QuorumState:
    """The present quorum, and progress to the next one. Recounts every record that the member table changes."""

    def __init__(self, first_id: int, members: MemberTable) -> None:
        self._members = members
        members.on_change = self._recount
        self.current: Quorum | None = None  # newest quorum issued or adopted
        self._top = State()  # its newest complete state
        self.chain = OpenQuorums()  # quorums before it that are still open
        self.inside: frozenset[str] = frozenset()  # replica ids of current's members
        self.broken = ""  # why current was revoked; '' while it was not
        self.asking: set[str] = set()  # candidates: joined and not lost
        self.asked_since = inf  # first ask for the next quorum, by a member that may have given up; inf: none
        self._last_ask = -inf
        self.missing: set[str] = set()  # members of current, neither joined nor lost; no next quorum while there is one
        self.gone: set[str] = set()  # lost members of current
        self.silent: set[str] = set()  # members that are alive, but have not asked
        self.changed = True  # whether anything has, since a next quorum was last found impossible
        self.granted_through = 0  # highest step ever granted in current
        self.reached = 0  # newest step that a member of current has committed, as far as reported; for people
        self.lost_at = -inf  # when a quorum was issued without a lost member of the one before
        self.leased = -inf  # when a lease was last sent to any member
        self._received_by_all = 0  # id of the newest quorum that all of its members are known to have received
        self._steady = False  # all members carry and take grants: more than one step may be granted
        self.next_id = first_id  # R1: every quorum takes a new one
        self._number = 0  # number of the latest quorum, for people

    def __repr__(self) -> str:
        quorum = f"q{self.current.number} {sorted(self.inside)}" if self.current else "no quorum"
        return f"<QuorumState {quorum} asking={sorted(self.asking)} missing={sorted(self.missing)} {self.broken}>"

    def raise_ids(self, heard: int) -> None:
        """Raise the next id above this one: every new id is above every id ever heard (R1)."""
        self.next_id = max(self.next_id, heard + 1)

    def holds_current(self, record: MemberRecord) -> bool:
        """Return whether this member is in the present quorum and has received it."""
        return self.current is not None and record.replica_id in self.inside and record.quorum_id == self.current.id

    @property
    def quorum_id(self) -> int:
        """Id of the present quorum; 0: there is none."""
        return self.current.id if self.current else 0

    @property
    def ran(self) -> frozenset[str]:
        """Replica ids of the members of current, and of the older quorums that are open."""
        return self.inside | self.chain.members if self.chain.members else self.inside

    @property
    def pending(self) -> bool:
        """True if another quorum will follow the present one, so that no grant in it may grow (R5)."""
        return bool(not self._steady or self.broken or self.gone or self.asking)

    def goes_on_without(self, replica_id: str, least: int) -> bool:
        """Return whether `least` or more members train on in the present quorum, and this one is none of them.

        Older attempts of this member are lost already, so they do not count.
        """
        return replica_id not in self.inside and len(self.inside) - len(self.gone) >= max(least, 1)

    def stops_short(self, member: Member) -> bool:
        """Return whether it asks inside a grant. The others may then run on, and wait for it in a collective."""
        cur = self.current
        return cur is not None and self._top.step + 1 < self.granted_through > member.state.step

    def with_committed_in(self, member: Member) -> Member:
        """Return the member with the quorum in which it committed its step.

        A client of torchft reports its step only, but the present quorum, if it was in it, tells where it committed.
        """
        cur = self.current
        if cur is None or member.replica_id not in self.inside:
            return member
        committed_in = {self._top.step: self._top.committed_in, self._top.step + 1: cur.id}.get(member.state.step, 0)
        return replace(member, state=State(member.state.step, committed_in))

    def _recount(self, record: MemberRecord) -> None:
        """Bring the sets in line with the record. They make "not yet" cheap to see."""
        self.changed = True
        replica_id, lost = record.replica_id, bool(record.lost)
        inside = replica_id in self.inside
        asks = record.join is not None and not lost
        (self.asking.add if asks else self.asking.discard)(replica_id)
        if record.join is not None and not lost:
            since = record.join.since
            self.asked_since = since if since - self._last_ask > TIMING.one_wait else min(self.asked_since, since)
            self._last_ask = max(self._last_ask, since)
        (self.missing.add if inside and not asks and not lost else self.missing.discard)(replica_id)
        (self.gone.add if inside and lost else self.gone.discard)(replica_id)
        silent = not lost and record.join is None and (record.unary or record.session is not None)
        (self.silent.add if silent else self.silent.discard)(replica_id)

    def absent_groups(self, announced: AbstractSet[str]) -> AbstractSet[str]:
        """Return those of these groups, whose supervisors are here, of which no member is here yet."""
        if not announced:
            return set()
        return announced - group_names((*self.asking, *self.silent))

    def held_elsewhere(self, held: Mapping[str, State]) -> Mapping[str, State]:
        """Return those of these copies whose groups have not asked."""
        if not held:
            return held
        asked = group_names(self.asking)
        return {group: state for group, state in held.items() if group not in asked}

    def situation(
        self, config: LighthouseConfig, over: frozenset[str], *, now: float, without: frozenset[str] = frozenset()
    ) -> QuorumInputs:
        """Return the inputs of `form`. `without`: members to take for lost, to see what it would decide."""
        return QuorumInputs(
            now=now,
            cur=self.current,
            open=self.chain.open,
            candidates=tuple([c for c in candidates(self._members) if c.member.replica_id not in without]),
            asked_since=self.asked_since,
            lost=self.gone | without,
            over=over,
            broken=bool(self.broken),
            silent_healthy=self.silent - without,
            absent_groups=self.absent_groups(self._members.supervisors.groups),
            held=self.held_elsewhere(self._members.supervisors.held),
            min_replicas=config.min_replicas,
            join_timeout=config.join_timeout,
            longest_wait=config.longest_wait,
        )

    def issue(self, decision: Form, *, now: float, unix: float, lease: float) -> Quorum:
        """Make the decided quorum the present one: use up the joins, begin leases. `unix`: now, in unix seconds."""
        cur = self.current
        quorum = Quorum(
            id=self.next_id,
            config_id=self.next_id if decision.rebuild or cur is None else cur.config_id,
            number=self._number + 1,
            members=decision.members,
            created=unix,
            granted_through=settle(decision.members, State()).top.step + 1,
            lease=lease,
        )
        self.raise_ids(self.next_id)
        if cur is not None:
            self.chain.leave(cur)
        if self.gone:
            self.lost_at = now
        self._begin(quorum)
        self.leased, self.changed = now, True
        # Count all of them again at once: their joins are answered, and most are still here.
        self.asking -= self.inside
        self.asked_since = inf
        self.silent |= self.inside
        for record in self._members.issue(quorum, now):
            if record.lost or (record.session is None and not record.unary):
                self._recount(record)
        return quorum

    def adopt(
        self,
        quorum: Quorum,
        older: tuple[Quorum, ...],
        *,
        started_at: float,
        leased: float | None = None,
        granted_through: int = 0,
    ) -> None:
        """Take over the newest quorum that was reported (R8). Its members' leases began before this process did.

        `older`: the last quorums of those of its members that have not received it. `leased`: time after which no lease
        was sent; None: the start of this process.
        """
        leased = started_at if leased is None else min(leased, started_at)
        self.leased = max(self.leased, leased)
        self.raise_ids(quorum.id)
        self._begin(quorum)
        self.chain.begin(older)
        self.granted_through = max(self.granted_through, granted_through)
        for member in {m.replica_id: m for q in (*older, quorum) for m in q.members}.values():
            self._members.adopt(member, started_at, leased)

    def committed(self, quorum_id: int) -> None:
        """Record that a step was committed in this quorum.

        A commit takes all of its members, so all have received it, including those that have died since.
        """
        if quorum_id <= self._received_by_all or not self.chain.open:
            return
        for quorum in (*self.chain.open, *((self.current,) if self.current is not None else ())):
            if quorum.id == quorum_id:
                self._received_by_all = quorum_id
                for member in quorum.members:
                    self.chain.received(member.replica_id, quorum_id)

    def forget(self) -> None:
        """Forget the present quorum: it was taken over from a journal, and was not the newest."""
        self.current = None
        self.chain.begin()
        self.inside = frozenset()
        self.missing, self.gone = set(), set()
        self.broken, self.granted_through, self._steady = "", 0, False
        for record in self._members:
            self._recount(record)

    def _begin(self, quorum: Quorum) -> None:
        self.current = quorum
        self.inside = frozenset([m.replica_id for m in quorum.members])
        self.missing = set(self.inside)
        self.gone = set()
        self.broken = ""
        self.granted_through = quorum.granted_through
        settled = quorum.settled
        self._top, self.reached = settled.top, settled.top.step
        records = self._members.records_of(quorum.members)
        whole = len(settled.carriers) == len(records) == len(quorum.members)
        self._steady = whole and not [r for r in records if not r.runs_on]
        self._number = max(self._number, quorum.number)


def candidates(members: MemberTable) -> tuple[Candidate, ...]:
    """Return the candidates: members that have asked and are alive."""
    return tuple([r.join for r in members if r.join is not None and not r.lost])
