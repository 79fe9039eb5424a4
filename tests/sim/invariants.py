"""What must hold, checked in the event in which it could break, at a cost that does not grow with the run.

I1 to I8, A1 and L2 are checked by the hooks below, which the nodes call; L1 is checked by `tests.sim.swarm` when the
faults have stopped. I9 (samples) needs the sampler of a later part.

The checker knows the truth: every process's memory, not what was said about it. It never asks the lighthouse.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.sim.book import Book
from torchft_x.core import messages as m
from torchft_x.core.recovery import Plan
from torchft_x.core.step import LocalVote
from torchft_x.core.types import JoinReason, Member, Prepared, Quorum, State
from torchft_x.errors import ConfigError

if TYPE_CHECKING:
    from tests.sim.collective import Contribution
    from tests.sim.group_node import GroupNode
    from tests.sim.lighthouse_node import LighthouseNode
    from tests.sim.rank_node import RankNode
    from tests.sim.world import World

ORIGIN = State()
TAIL = 60  # lines of trace that a violation shows


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, seed: int, invariant: str, what: str, time: float, lines: list[str]) -> None:
        super().__init__(seed, invariant, what, time, lines)
        self.seed, self.invariant, self.what, self.time, self.lines = seed, invariant, what, time, lines

    @property
    def headline(self) -> str:
        return (
            f"{self.invariant} is violated at {self.time:.4f} s, seed {self.seed}: {self.what}\n"
            f"Replay it: python -m tests.sim.run --seed {self.seed} --trace"
        )

    def __str__(self) -> str:
        return "\n".join([*self.lines[-TAIL:], self.headline])


class Checker:
    """All invariants of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.commits = 0  # decisions of groups to commit
        self.quorums = 0
        self.newest: Quorum | None = None  # of all lighthouses' lives
        self.lineage = 0  # number of the present one
        self.hopeless: set[str] = set()  # groups that would have to heal across libraries
        self._lineages: dict[int, int] = {}  # quorum id -> its lineage
        self._closed: set[int] = set()  # quorums in which nothing may be committed any more (I4)
        self._values: dict[tuple[int, State], int] = {}  # (group rank, state) -> parameters (I1)
        self._final: dict[tuple[int, int, int], int] = {}  # (lineage, step, group rank) -> parameters (A1)
        self._decided: dict[str, tuple[int, int, bool]] = {}  # replica id -> newest (quorum, step, commit) (I2)
        self._books: dict[str, Book] = {}  # who waits at each lighthouse (L2), by its site
        self.figures: Counter[str] = Counter()  # what became of steps that did not commit at once; per rank
        self._troubled: set[int] = set()  # quorums that ended for another reason than a grant that was used up

    def _violated(self, invariant: str, what: str) -> None:
        self._world.violated(invariant, what)

    def _name(self, quorum: Quorum) -> str:
        return self._world.trace.name(quorum.id)

    # --- quorums: I1, I3, I4, L2 ---------------------------------------------------------------------------------

    def on_issue(self, node: LighthouseNode, quorum: Quorum) -> None:
        """Every quorum of every lighthouse, in the order of issue."""
        self.quorums += 1
        self._check_ids(quorum)
        self._check_claims(quorum)
        self._check_succession(quorum)
        self._check_nobody_is_passed_over(node, quorum)
        self._check_meeting(quorum)
        self.newest = quorum
        self._lineages[quorum.id] = self.lineage

    def _check_ids(self, quorum: Quorum) -> None:
        """I3: each id is above every id before, over all lives of the lighthouse."""
        if self.newest is not None and quorum.id <= self.newest.id:
            self._violated("I3", f"quorum id {quorum.id} follows {self.newest.id}")

    def _check_claims(self, quorum: Quorum) -> None:
        """I1, at its root: what the quorum says of a member is what its ranks hold at this instant (R3, R4)."""
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
        """R16: it asked, lost its session before the lighthouse did, and has committed on in the quorum it held.

        What the lighthouse says of it is old then. Nobody is harmed: all members of that quorum run on, or nothing is
        committed in it; and whoever receives the new one can heal to the old state from nobody.
        """
        held = node.machine.quorum
        on = held is not None and member.state.committed_in == held.id == now_at.committed_in
        return self._world.config.runs_on and on and now_at.step > member.state.step

    def _check_succession(self, quorum: Quorum) -> None:
        """I4: some member carries on the quorum before, or each of its members outside can't commit in it any more.

        In truth: it has ended or left, or its own clock is past its own lease, or it does not hold that quorum. From
        here on a commit in that quorum is a violation, too (`on_decision`), which also covers what was in flight.
        """
        before = self.newest
        if before is None:
            return
        carriers = {c.replica_id for c in before.carriers}
        inside = {c.replica_id for c in before.members}
        for member in quorum.members:
            name = member.replica_id
            if name in inside and not member.torn and (name in carriers or member.state > before.top):
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
        """R7: where nothing was lost and nothing failed, all members stop at the same step, the last one granted."""
        before = self.newest
        if before is None or before.id in self._troubled or len(before.carriers) < len(before.members):
            return
        here = [x for x in quorum.members if before.member(x.replica_id) is not None and x.library]
        if len({x.state for x in here}) > 1:
            where = ", ".join(f"{x.replica_id} at {x.state}" for x in here)
            self._violated("R7", f"{self._name(before)} ended without trouble, but its members stopped at unequal "
                           f"steps: {where}")  # fmt: skip

    def _may_commit(self, node: GroupNode, quorum: Quorum) -> bool:
        machine = node.machine
        if node.ended or node.left or node.process.dead or machine._join is not None or machine.quorum is None:
            return False
        now = node.process.clock.read(self._world.now)
        return machine.quorum.id == quorum.id and now <= machine.lease_until

    def _check_nobody_is_passed_over(self, node: LighthouseNode, quorum: Quorum) -> None:
        """L2: whoever lives, has asked on its present session and was heard within the heartbeat timeout, is in."""
        limit = self._world.config.lighthouse.heartbeat_timeout
        now = node.clock.read(self._world.now)
        members = {member.replica_id for member in quorum.members}
        book = self._books[node.site]
        for name, heard in book.waiting():
            if name in members:
                book.answered(name)
                continue
            life = self._world.nodes.get(name) or self._world.peers.get(name.rsplit(":", 1)[0])
            if life is not None and not life.process.dead and now - heard <= limit:
                self._violated("L2", f"{name} waits and was heard {now - heard:.3f} s ago, but is not in "
                               f"{self._name(quorum)}")  # fmt: skip

    # --- the lighthouse's book: I8, L2 ---------------------------------------------------------------------------

    def on_lighthouse(self, node: LighthouseNode) -> None:
        """A new life of the lighthouse: whoever waits must ask again."""
        self._books[node.site] = Book()
        if self.newest is not None:
            self._troubled.add(self.newest.id)

    def on_lighthouse_event(self, node: LighthouseNode, event: m.LighthouseEvent) -> None:
        if self.newest is not None and (isinstance(event, (m.Hello, m.Leave, m.Closed, m.LifeEnded)) or (
                isinstance(event, m.Join) and event.reason is not JoinReason.BOUNDARY)):  # fmt: skip
            self._troubled.add(self.newest.id)
        self._books[node.site].enter(event, node.clock.read(self._world.now))

    def on_over(self, quorum_id: int) -> None:
        """The lighthouse tells members that this quorum is over."""
        self._troubled.add(quorum_id)

    def on_extended(self, node: LighthouseNode, session: int) -> None:
        """A grant has answered this session's join, if it had one."""
        self._books[node.site].joins.pop(session, None)

    def on_turned_away(self, node: LighthouseNode, session: int) -> None:
        """The lighthouse ends this session."""
        self._books[node.site].drop(session)

    def on_call_refused(self, node: LighthouseNode, name: str) -> None:
        self._books[node.site].answered(name)

    def on_lighthouse_tick(self, node: LighthouseNode) -> None:
        """I8: while somebody waits for a quorum the lighthouse has a reason that a person can read."""
        book = self._books[node.site]
        if node.machine is not None and book.joins and not _is_sentence(node.machine.undecided):
            names = ", ".join(name for name, _ in book.waiting())
            self._violated("I8", f"{names} wait at the lighthouse, whose reason is {node.machine.undecided!r}")

    # --- groups: I2, I4, I8 --------------------------------------------------------------------------------------

    def on_join(self, node: GroupNode, member: Member) -> None:
        """I1: a group that joins says what its ranks hold."""
        if not any(r.process.dead for r in node.ranks) and member.state != min(r.step.state for r in node.ranks):
            self._violated("I1", f"{node.replica_id} joins at {member.state}, which its ranks do not hold")

    def on_decision(self, node: GroupNode, quorum: Quorum | None, commit: bool) -> None:
        """I4: nothing is committed in a quorum after which a new lineage has begun, nor after the own lease's end.

        The instant of a commit is that of the decision, when the clock is read: a process that is stopped later
        carries out late what was decided in time.
        """
        if not commit or quorum is None:
            return
        self.commits += 1
        if quorum.id in self._closed:
            self._violated("I4", f"{node.replica_id} commits in {self._name(quorum)}, after a new lineage has begun")
        late = node.process.clock.read(self._world.now) - node.machine.lease_until
        if late > 0:
            self._violated("I4", f"{node.replica_id} commits {late:.3f} s after the end of its lease")
        self._check_counted_over(node, quorum)

    def _check_counted_over(self, node: GroupNode, quorum: Quorum) -> None:
        """R13: nobody commits in a quorum whose lease has ended for it as a lighthouse counts it."""
        if len(self._world.lighthouses) > 1:
            return  # a lease that ends at one may have been renewed at the other, and both know that
        for house in self._world.lighthouses:
            if house.process is None or house.process.stopped or house.machine is None:
                continue
            record = house.machine._roll.get(node.replica_id)
            if record is None or record.proof or record.quorum_id != quorum.id:
                continue
            if house.machine.current is quorum and house.machine._alarm.is_over(
                record, house.clock.read(self._world.now)
            ):
                self._violated("R13", f"{node.replica_id} commits in {self._name(quorum)}, which the {house.name} counts "
                               "as over for it")  # fmt: skip

    def on_late(self, node: GroupNode, quorum: Quorum, held: Prepared) -> None:
        """A result is committed after the fact, in another quorum than the one it was reduced in."""
        self.commits += 1
        self.figures["adopted" if quorum.settled.adopted == held else "committed late"] += 1

    def on_group_tick(self, node: GroupNode) -> None:
        """I8: whatever a rank waits for, it waits with a deadline that is still to come, and can say for what."""
        now = self._world.now
        for rank in node.ranks:
            if not rank.wait or rank.process.stopped:
                continue
            deadline = rank.deadlines.until.get(rank.wait)
            just_resumed = rank.process.resumed == now  # what came due while it was stopped is still to be done
            if deadline is None or (deadline < now and not just_resumed):
                self._violated("I8", f"{rank.process.name} waits for '{rank.wait}', and its deadline is {deadline}")
            if rank.wait == "quorum" and rank.call and node.machine._join is not None:
                self.on_deadline(rank, "quorum", node.machine.waiting)

    def on_deadline(self, rank: RankNode, what: str, reason: str) -> None:
        """I8: a wait that ended without what was waited for says why."""
        if not _is_sentence(reason):
            self._violated("I8", f"{rank.process.name} waits for {what}, and all it is told is {reason!r}")

    # --- ranks: I1, I2, I5, I6, I7, A1 ---------------------------------------------------------------------------

    def on_begin(self, rank: RankNode, quorum: Quorum, plan: Plan) -> None:
        """I5: whom it may heal from is a carrier: whole, and at the newest state of the quorum."""
        self.hopeless.discard(rank.node.group)
        carriers = {c.replica_id for c in quorum.carriers}
        for source in plan.sources:
            if source.replica_id not in carriers:
                self._violated("I5", f"{rank.process.name} would heal from {source.replica_id} at {source.state}, but "
                               f"{self._name(quorum)} stands at {quorum.top}")  # fmt: skip

    def on_held(self, rank: RankNode, state: State, value: int) -> None:
        """I5: a healed rank holds exactly the parameters that were committed as this state."""
        if state != ORIGIN and self._values.get((rank.rank, state)) != value:
            self._violated("I5", f"{rank.process.name} healed to {state}, with parameters nobody committed as that")

    def on_committed(self, rank: RankNode, vote: LocalVote, result: tuple[Contribution, ...], size: int) -> None:
        """I1: members that commit step s in quorum q hold bit-identical parameters.

        Equal numbers stand for equal histories, so comparing with the first who committed (s, q) is comparing all.
        The gradients in the result must come from equal parameters, too. I7: enough groups contributed, and the
        divisor is their number. A1, where the cross-group vote is on: within a lineage a step is committed one way.
        """
        who, config = rank.process.name, self._world.config
        ours = [c for c in result if c[0] in self._world.nodes]
        if len(result) < config.min_replica_size or not result:
            self._violated("I7", f"{who} commits with {len(result)} participants, fewer than {config.min_replica_size}")
        if len(result) != size and not config.peers:
            self._violated("I7", f"{who} divides {len(result)} gradients by {size}")
        if len({c[1:] for c in ours}) > 1 or any(c[1] != vote.step for c in ours):
            self._violated("I1", f"{who} commits step {vote.step + 1} from gradients of unequal states: {ours}")
        state = State(vote.step + 1, vote.quorum_id)
        if self._values.setdefault((rank.rank, state), rank.value) != rank.value:
            self._violated("I1", f"{who} commits {state} with other parameters than another member did")
        if config.commit_vote:
            key = (self._lineages.get(vote.quorum_id, 0), state.step, rank.rank)
            if self._final.setdefault(key, rank.value) != rank.value:
                self._violated("A1", f"{who} commits step {state.step} another way than it was committed before")

    def on_settled(self, rank: RankNode, vote: LocalVote, commit: bool, before: tuple[State, int]) -> None:
        """I2: all ranks of a group decide alike on (quorum, step). I6: a dropped step changes nothing."""
        name = rank.node.replica_id
        decision = (vote.quorum_id, vote.step, commit)
        first = self._decided.get(name)
        if first is not None and first[:2] == decision[:2] and first[2] != commit:
            self._violated("I2", f"{rank.process.name} decides '{commit}' on step {vote.step + 1}, another rank not")
        self._decided[name] = decision
        if not commit and (rank.step.state, rank.value) != before:
            self._violated("I6", f"{rank.process.name} dropped step {vote.step + 1}, and it changed something")

    def on_hopeless(self, rank: RankNode, error: Exception) -> None:
        """The protocol's own refusal: nothing to heal from within the library."""
        if isinstance(error, ConfigError):
            self.hopeless.add(rank.node.group)


def _is_sentence(text: str) -> bool:
    return len(text.split()) >= 3
