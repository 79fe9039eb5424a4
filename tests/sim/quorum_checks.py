"""Invariants of quorums: the order of quorums, and the members that they must include.

These are I1, I3, I4, I8, L2, M1, M3 and R7.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from tests.sim.book import Book
from tests.sim.ending import Departures
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.messages.job import AttemptExited
from torchft_x.core.types import JoinReason, Member, Quorum, State, group_of

if TYPE_CHECKING:
    from tests.sim.group_node import GroupNode
    from tests.sim.lighthouse_node import LighthouseNode
    from tests.sim.world import World

TAIL = 60  # number of trace lines that a violation shows


class Violation(AssertionError):
    """Failure of a run: an invariant does not hold. Holds the seed, the time and the end of the trace."""

    def __init__(
        self, seed: int, invariant: str, what: str, time: float, lines: list[str], stories: Sequence[str] = ()
    ) -> None:
        """`lines`: of the trace; `stories`: recent decisions of the machines."""
        super().__init__(seed, invariant, what, time, lines, stories)
        self.seed, self.invariant, self.what, self.time, self.lines = seed, invariant, what, time, lines
        self.stories = stories

    @property
    def headline(self) -> str:
        return (
            f"{self.invariant} is violated at {self.time:.4f} s, seed {self.seed}: {self.what}\n"
            f"Replay it: python -m tests.sim.run --seed {self.seed} --trace"
        )

    def __str__(self) -> str:
        return "\n".join([*self.lines[-TAIL:], *self.stories, self.headline])


class QuorumChecks:
    """Checks of the quorums that lighthouses issue, and of the members that wait there.

    It owns the true lineage of each quorum.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.quorums = 0
        self.newest: Quorum | None = None  # newest quorum over all attempts of all lighthouses
        self._issued = -inf  # virtual time of its issue
        self.lineage = 0  # number of the present lineage
        self._lineages: dict[int, int] = {}  # quorum id -> its lineage
        self._followed = -1  # lineage of the newest quorum; `lineage` is one further when the next one begins another
        self._base = State()  # state at which that lineage began
        self._closed: set[int] = set()  # quorums in which nothing may be committed any more (I4)
        self.books: dict[str, Book] = {}  # site of a lighthouse -> members that wait there (L2)
        self.departures = Departures(world)  # for R21
        self._troubled: set[int] = set()  # ids of quorums that ended other than by using up their grant

    def _violated(self, invariant: str, what: str) -> None:
        self._world.violated(invariant, what)

    def _name(self, quorum: Quorum) -> str:
        return self._world.trace.name(quorum.id)

    # --- quorums: I1, I3, I4, L2 ---------------------------------------------------------------------------------

    def on_issue(self, node: LighthouseNode, quorum: Quorum) -> None:
        """Check every quorum of every lighthouse, in the order of issue."""
        self.quorums += 1
        self._check_ids(quorum)
        self._check_claims(quorum)
        lineage = self.lineage
        self._succeed(self.newest, quorum)
        if self.newest is None or self.lineage != lineage:
            self._check_held(quorum)
            self._check_left_behind(node, quorum)
        self._check_nobody_is_passed_over(node, quorum)
        self._check_meeting(quorum)
        self.newest, self._issued = quorum, self._world.now
        self._follow(quorum)

    def _follow(self, quorum: Quorum) -> None:
        """Record the lineage of a quorum.

        A quorum that stands at a state of an ended lineage begins another one. This happens when a member that was cut
        off comes back with more steps and leads; the steps since then are undone.
        """
        top = quorum.top
        home = self._followed if top == self._base else self._lineages.get(top.committed_in, self._followed)
        if self.lineage == self._followed != home:
            self.lineage += 1
        if self.lineage != self._followed:
            self._followed, self._base = self.lineage, top
        self._lineages[quorum.id] = self.lineage

    def _check_ids(self, quorum: Quorum) -> None:
        """Check I3: each id is above every id before, over all attempts of the lighthouse."""
        if self.newest is not None and quorum.id <= self.newest.id:
            self._violated("I3", f"quorum id {quorum.id} follows {self.newest.id}")

    def _check_claims(self, quorum: Quorum) -> None:
        """Check the base of I1: a member's state in the quorum is what its ranks hold at this instant (R3, R4)."""
        for member in quorum.members:
            node = self._world.nodes.get(member.replica_id)
            if node is None or node.ended or any(r.process.dead for r in node.ranks):
                continue
            states = {r.step.state for r in node.ranks}
            if member.state != min(states) and not self._runs_on_alone(node, member, min(states)):
                self._violated("I1", f"{self._name(quorum)} has {member.replica_id} at {member.state}, but its ranks "
                               f"stand at {', '.join(map(str, sorted(states)))}")  # fmt: skip
            if (len(states) > 1 or any(r.step.torn for r in node.ranks)) and not member.torn:
                self._violated("I1", f"{self._name(quorum)} has {member.replica_id} whole, but it is torn")

    def _runs_on_alone(self, node: GroupNode, member: Member, now_at: State) -> bool:
        """Return whether a member has gone on without a session (R16), so that the quorum's state of it is old.

        The member asked, lost its session before the lighthouse did, and has committed in the quorum that it held. This
        is safe: all members of that quorum run on, or nothing is committed in it, and no member of the new quorum can
        heal to the old state.
        """
        held = node.machine.quorum
        on = held is not None and member.state.committed_in == held.id == now_at.committed_in
        return self._world.config.runs_on and on and now_at.step > member.state.step

    def _succeed(self, before: Quorum | None, quorum: Quorum) -> None:
        """Check I4, and R21: while a job is being finished, and after that, no group that was in it begins it again."""
        lineage = self.lineage
        self._check_succession(before, quorum)
        why = self.departures.issued(quorum, new_lineage=self.lineage != lineage)
        if why:
            self._violated("R21", f"{self._name(quorum)} begins a new lineage, {why}")

    def _check_held(self, quorum: Quorum) -> None:
        """Check M1: a new history begins at or after the newest state of which a member holds a complete copy.

        Members that were ordered to heal to an older state before are exempt.
        """
        for member in quorum.members:
            node = self._world.nodes.get(member.replica_id)
            given_up = node is None or node.ended or any(rank.held.given_up for rank in node.ranks)
            memory = None if node is None or given_up else node.supervisor.memory
            newest = None if memory is None else memory.newest
            if newest is not None and newest > quorum.top:
                self._violated(
                    "M1", f"{self._name(quorum)} begins at {quorum.top}, and {member.replica_id} holds {newest}"
                )

    def _check_left_behind(self, node: LighthouseNode, quorum: Quorum) -> None:
        """Check M3: a new history leaves no newer state behind in a supervisor's memory without waiting for it.

        This concerns supervisors that have reported the state, are connected, and will start their group again.
        """
        if self._world.now - self._issued > 0.9 * self._world.config.lighthouse.longest_wait:
            return
        inside = {group_of(member.replica_id) for member in quorum.members}
        for group, (_, state) in node.copies.items():
            supervisor = self._world.supervisors.get(group)
            if supervisor is None or group in inside or supervisor.process.dead or not supervisor.wants:
                continue
            holds = None if supervisor.memory is None else supervisor.memory.newest
            if holds is not None and min(holds, state) > quorum.top:
                self._violated(
                    "M3", f"{self._name(quorum)} begins at {quorum.top}, and the supervisor of {group} holds {holds}"
                )

    def _check_succession(self, before: Quorum | None, quorum: Quorum) -> None:
        """Check I4: a member carries on the quorum before, or none of its members outside can commit in it any more.

        By its true state such a member has ended or left, or its own clock is past its own lease, or it does not hold
        that quorum. After this a commit in that quorum is a violation, too (`on_decision`), which also covers messages
        under way.
        """
        if before is None:
            return
        carriers = {c.replica_id for c in before.carriers}
        inside = {c.replica_id for c in before.members}
        if inside <= {c.replica_id for c in quorum.members if not c.torn}:
            return
        for member in quorum.members:
            name = member.replica_id
            stands = member.state >= before.top if name in carriers else member.state > before.top
            if name in inside and not member.torn and stands:
                return
        asked = {c.replica_id for c in quorum.members}
        for name in sorted(inside - asked):
            node = self._world.nodes.get(name)
            if node is not None and self._may_commit(node, before):
                self._violated("I4", f"{self._name(quorum)} begins a new lineage after {self._name(before)}, in which "
                               f"{name} may still commit")  # fmt: skip
        self.lineage += 1
        self._closed.add(before.id)

    def _check_meeting(self, quorum: Quorum) -> None:
        """Check R7: without a loss or failure all members stop at the same step, the last one granted."""
        before = self.newest
        if before is None or before.id in self._troubled or len(before.carriers) < len(before.members):
            return
        here = [x for x in quorum.members if before.member(x.replica_id) is not None and x.library]
        here = [x for x in here if not x.commit_failures]  # members that have dropped a step may stand elsewhere
        if len({x.state for x in here}) > 1:
            where = ", ".join(f"{x.replica_id} at {x.state}" for x in here)
            self._violated("R7", f"{self._name(before)} ended without trouble, but its members stopped at unequal "
                           f"steps: {where}")  # fmt: skip

    def _may_commit(self, node: GroupNode, quorum: Quorum) -> bool:
        """Return whether a member can commit in this quorum, by its true state and clock."""
        machine = node.machine
        if node.ended or node.left or node.process.dead or machine._join is not None or machine.quorum is None:
            return False
        now = node.process.clock.read(self._world.now)
        return machine.quorum.id == quorum.id and now <= machine.lease_until

    def _check_nobody_is_passed_over(self, node: LighthouseNode, quorum: Quorum) -> None:
        """Check L2: each live member that waits on its present session and was heard in time is in.

        In time means within the heartbeat timeout.
        """
        limit = self._world.config.lighthouse.silence.shortest
        now = node.clock.read(self._world.now)
        members = {member.replica_id for member in quorum.members}
        book = self.books[node.site]
        for name, heard in book.waiting():
            if name in members:
                book.answered(name)
                continue
            peer = self._world.peers.get(name.rsplit(":", 1)[0])  # the peer's client in its present attempt
            asker = self._world.nodes.get(name) or (peer if peer is not None and peer.who == name else None)
            if book.is_halted(name):
                continue  # it waits, but its process is stopped
            record = node.machine._members.get(name)
            before = now - 2 * self._world.config.lighthouse.tick
            if record is not None and node.machine._waiting.kept_out(record, before):
                continue  # it was late too often (R20); a member whose exclusion is over joins at the next tick
            if asker is not None and not asker.process.dead and now - heard <= limit:
                self._violated("L2", f"{name} waits and was heard {now - heard:.3f} s ago, but is not in "
                               f"{self._name(quorum)}")  # fmt: skip

    # --- the lighthouse's book: I8, L2 ---------------------------------------------------------------------------

    def on_lighthouse(self, node: LighthouseNode) -> None:
        """Begin a new book for a new attempt of the lighthouse, as all members must ask again."""
        self.books[node.site] = Book()
        if self.newest is not None:
            self._troubled.add(self.newest.id)

    def on_lighthouse_event(self, node: LighthouseNode, event: lm.LighthouseEvent) -> None:
        """Record an event in the lighthouse's book, and whether it disturbs the newest quorum."""
        if self.newest is not None and (isinstance(event, (lm.Hello, lm.Leave, lm.Closed, AttemptExited)) or (
                isinstance(event, lm.Join) and event.reason is not JoinReason.BOUNDARY)):  # fmt: skip
            self._troubled.add(self.newest.id)
        self.books[node.site].enter(event, node.clock.read(self._world.now))

    def on_over(self, quorum_id: int) -> None:
        """Record that the lighthouse reports this quorum as over."""
        self._troubled.add(quorum_id)

    def on_lighthouse_tick(self, node: LighthouseNode) -> None:
        """Check I8: while a member waits for a quorum, the lighthouse has a reason that a person can read."""
        book = self.books[node.site]
        if node.machine is not None and book.joins and not is_sentence(node.machine.undecided):
            names = ", ".join(name for name, _ in book.waiting())
            self._violated("I8", f"{names} wait at the lighthouse, whose reason is {node.machine.undecided!r}")


def is_sentence(text: str) -> bool:
    return len(text.split()) >= 3
