"""The invariants of a run, each checked in the event in which it could break.

The cost of a check does not grow with the run.

I1 to I10, A1 and L2 are checked by the hooks below, which the nodes call. L1 is checked by the module `swarm` when the
faults have stopped.

The checker reads the truth, that is every process's memory, and not what was reported. It never asks the lighthouse.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.sim.data import SampleLedger
from tests.sim.quorum_checks import QuorumChecks, Violation, is_sentence
from torchft_x.core.commit.values import LocalVote
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.types import Member, Prepared, Quorum, State

if TYPE_CHECKING:
    from tests.sim.collective import Contribution
    from tests.sim.group_node import GroupNode
    from tests.sim.rank_node import RankNode
    from tests.sim.world import World

ORIGIN = State()

__all__ = ["Checker", "Violation"]


class Checker(QuorumChecks):
    """All invariants of one world. A violation ends the run with `Violation`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.samples = SampleLedger(world)
        self.commits = 0  # number of decisions of groups to commit
        self.hopeless: set[str] = set()  # groups that were refused beside the peer's clients
        self.figures: Counter[str] = Counter()  # outcomes of steps that did not commit at once, counted per rank
        self._values: dict[tuple[int, State], int] = {}  # (group rank, state) -> parameters (I1)
        self._final: dict[tuple[int, int, int], int] = {}  # (lineage, step, group rank) -> parameters (A1)
        self._thrown_away: set[int] = set()  # steps dropped after the decision to commit (decision 12)
        self._decided: dict[str, tuple[int, int, bool]] = {}  # replica id -> newest (quorum, step, commit) (I2)

    # --- groups: I2, I4, I8 --------------------------------------------------------------------------------------

    def on_join(self, node: GroupNode, member: Member) -> None:
        """Check I1: a group that joins reports the state that its ranks hold."""
        if not any(r.process.dead for r in node.ranks) and member.state != min(r.step.state for r in node.ranks):
            self._violated("I1", f"{node.replica_id} joins at {member.state}, which its ranks do not hold")

    def on_decision(self, node: GroupNode, quorum: Quorum | None, commit: bool) -> None:
        """Check I4: no commit in a quorum after a new lineage has begun, nor after the end of the own lease.

        The instant of a commit is that of the decision, when the clock is read. A process that is stopped after that
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
        """Check R13: no group commits in a quorum whose lease has ended for it by the lighthouse's count."""
        for house in self._world.lighthouses:
            if house.process is None or house.process.stopped or house.machine is None:
                continue
            record = house.machine._members.get(node.replica_id)
            if record is None or record.proof or record.quorum_id != quorum.id:
                continue
            if house.machine.current is quorum and house.machine._waiting.is_over(
                record, house.clock.read(self._world.now)
            ):
                self._violated("R13", f"{node.replica_id} commits in {self._name(quorum)}, which the {house.name} counts "
                               "as over for it")  # fmt: skip

    def on_late(self, node: GroupNode, quorum: Quorum, held: Prepared) -> None:
        """Count a result that is committed later, in another quorum than the one in which it was reduced."""
        self.commits += 1
        self.figures["adopted" if quorum.settled.adopted == held else "committed late"] += 1

    def on_group_tick(self, node: GroupNode) -> None:
        """Check I8: each wait of a rank has a deadline in the future and a reason that can be stated."""
        now = self._world.now
        for rank in node.ranks:
            if not rank.wait or rank.process.stopped:
                continue
            deadline = rank.deadlines.until.get(rank.wait)
            just_resumed = rank.process.resumed == now  # its backlog has yet to run
            if deadline is None or (deadline < now and not just_resumed):
                self._violated("I8", f"{rank.process.name} waits for '{rank.wait}', and its deadline is {deadline}")
            if rank.wait == "quorum" and rank.call and node.machine._join is not None:
                self.on_deadline(rank, "quorum", node.machine.waiting)

    def on_deadline(self, rank: RankNode, what: str, reason: str) -> None:
        """Check I8: a wait that ended without a result states why."""
        if not is_sentence(reason):
            self._violated("I8", f"{rank.process.name} waits for {what}, and all it is told is {reason!r}")

    # --- ranks: I1, I2, I5, I6, I7, I9, I10, A1 ----------------------------------------------------------------------

    def on_begin(self, rank: RankNode, quorum: Quorum, plan: QuorumPlan) -> None:
        """Check I5: each source of a heal is a carrier, that is whole and at the newest state of the quorum."""
        self.hopeless.discard(rank.node.group)
        carriers = {c.replica_id for c in quorum.carriers}
        for source in plan.sources:
            if source.replica_id not in carriers:
                self._violated("I5", f"{rank.process.name} would heal from {source.replica_id} at {source.state}, but "
                               f"{self._name(quorum)} stands at {quorum.top}")  # fmt: skip

    def on_held(self, rank: RankNode, state: State, value: int) -> None:
        """Check I5: a healed rank holds exactly the parameters that were committed as this state. Check I10, too."""
        self.samples.check(rank, state)
        if state != ORIGIN and self._values.get((rank.rank, state)) != value:
            self._violated("I5", f"{rank.process.name} healed to {state}, with parameters nobody committed as that")

    def on_copy(self, rank: RankNode, before: State | None, now: State | None) -> None:
        """Check M2: a copy that begins never costs the group the newest state that all its ranks hold complete."""
        if before != now:
            self._violated(
                "M2", f"{rank.process.name} copies over its part of {before}, and the group is left with {now}"
            )

    def on_committed(self, rank: RankNode, vote: LocalVote, result: tuple[Contribution, ...], size: int) -> None:
        """Check I1: members that commit step s in quorum q hold bit-identical parameters. Check I7, I9, I10 and A1, too.

        Equal numbers stand for equal histories, so that comparing with the first member that committed (s, q) compares
        all. The gradients in the result must come from equal parameters, too. I7: enough groups contributed, and the
        divisor is their number. A1, where the cross-group vote is on: within a lineage a step is committed with one
        result.
        """
        who, config = rank.process.name, self._world.config
        ours = [c for c in result if c[0] in self._world.nodes]
        if len(result) < config.min_replica_size or not result:
            self._violated("I7", f"{who} commits with {len(result)} participants, fewer than {config.min_replica_size}")
        if len(result) != size and not config.peers:
            self._violated("I7", f"{who} divides {len(result)} gradients by {size}")
        if config.data is None or config.max_redo == 0:  # else the slots decide, whatever the number
            self._check_parts(who, vote, ours)
        if len({c[1:3] for c in ours}) > 1 or any(c[1] != vote.step for c in ours):
            self._violated("I1", f"{who} commits step {vote.step + 1} from gradients of unequal states: {ours}")
        state = State(vote.step + 1, vote.quorum_id)
        if self._values.setdefault((rank.rank, state), rank.value) != rank.value:
            self._violated("I1", f"{who} commits {state} with other parameters than another member did")
        if config.data is not None:
            self.samples.on_committed(rank, state, result)
        if config.commit_vote and state.step not in self._thrown_away:
            # A late commit belongs to a later quorum than its vote.
            settled_in = rank.plan.quorum_id if rank.plan is not None else vote.quorum_id
            key = (self._lineages.get(settled_in, 0), state.step, rank.rank)
            if self._final.setdefault(key, rank.value) != rank.value:
                self._violated("A1", f"{who} commits step {state.step} another way than it was committed before")

    def _check_parts(self, who: str, vote: LocalVote, ours: list[Contribution]) -> None:
        """Check I9: a gradient counts only in the part for which it was computed.

        No gradient counts without a number, and no two for one number.

        One number may have two gradients if members are lost while another has not begun the step. That one computes
        for its new number, and does not know the numbers that the others keep.
        """
        numbers: dict[int | None, Contribution] = {}
        for c in ours:
            name, _, _, part = c
            other = numbers.setdefault(part.rank, c)
            if part.rank is None:
                self._violated("I9", f"{who} commits step {vote.step + 1} with {name}'s gradient, which is for nobody")
            if other[0] != name and not (name in other[3].contributors and other[0] in part.contributors):
                self._violated(
                    "I9",
                    f"{who} commits step {vote.step + 1} with gradients of {other[0]} and {name} for number {part.rank}",
                )

    def on_thrown_away(self, rank: RankNode, vote: LocalVote, before: tuple[State, int]) -> None:
        """Record a step that a group throws away after the decision (decision 12), and check that nothing else changed.

        Such a step is not final if the groups that committed it are cut off.
        """
        self._thrown_away.add(vote.step + 1)
        self.figures["thrown away"] += 1
        self.on_concluded(rank, vote, False, before)

    def on_concluded(self, rank: RankNode, vote: LocalVote, commit: bool, before: tuple[State, int]) -> None:
        """Check I2: all ranks of a group decide alike on (quorum, step). Check I6: a dropped step changes nothing."""
        name = rank.node.replica_id
        decision = (vote.quorum_id, vote.step, commit)
        first = self._decided.get(name)
        if first is not None and first[:2] == decision[:2] and first[2] != commit:
            self._violated("I2", f"{rank.process.name} decides '{commit}' on step {vote.step + 1}, another rank not")
        self._decided[name] = decision
        if not commit and (rank.step.state, rank.value) != before:
            self._violated("I6", f"{rank.process.name} dropped step {vote.step + 1}, and it changed something")
