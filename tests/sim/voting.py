"""should_commit: the vote inside the group, the vote between groups, and the fate of a step that did not commit.

::

    vote (in the group) --> prepared --> cross (between groups) --> crossed (in the group) --> commit
           |                                  |                        |
           +---------- no --------------------+----- unknown ----------+--> settle: the next quorum decides

Without the vote between groups the first yes commits. A result that another group may have committed is held until a
quorum has decided on it (R12, R14), even if the training script goes on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.sim.base import fold
from tests.sim.collective import Contribution
from torchft_x.core import cross_group_vote
from torchft_x.core.commit.step import StepPhase
from torchft_x.core.commit.values import LocalVote, Outcome, misfit
from torchft_x.core.cross_group_vote import CrossVote
from torchft_x.core.training.memory_checkpoint import CopyDecision
from torchft_x.core.types import State
from torchft_x.errors import StepError, TorchftXError

if TYPE_CHECKING:
    from tests.sim.rank_node import RankNode


@dataclass(frozen=True, slots=True)
class Held:
    """Result that must not be dropped yet, because another group may have committed it."""

    vote: LocalVote
    result: tuple[Contribution, ...]
    size: int  # divisor


class Voting:
    """Votes of one rank over all of its steps. Owns the result that is in doubt."""

    def __init__(self, rank: RankNode) -> None:
        self.redoes = False  # the previous step's local gradients are reduced again in the present quorum
        self._rank = rank
        self._vote: LocalVote | None = None  # vote under way
        self._crossed = False  # the group has voted yes to the other groups on this result
        self._held: Held | None = None  # result in doubt
        self._settling = False  # should_commit waits for a quorum that settles the step

    @property
    def open(self) -> bool:
        """Whether a step is in doubt."""
        return self._held is not None

    def forget(self, *, settling: bool) -> None:
        """Reset when a quorum is asked for."""
        if self._settling and not settling:
            self._rank.world.checker.figures["dropped: no quorum in time"] += 1
        self._vote, self._crossed = None, False
        self.redoes, self._settling = False, settling

    def on_begin(self, ended: Outcome | None) -> None:
        """Commit, redo or drop the step before, as the next quorum has decided (`ended`)."""
        rank, held = self._rank, self._held
        settling, self._held, self._settling = self._settling, None, False
        if ended is not None or settling:
            rank.budget.next_step(rank.world.now)
        count = rank.world.checker.figures
        if ended is not None and ended.committed:
            self._optimizer_step(held, "commits late")
            count["late commits"] += 1
        elif settling:
            kept, computed = rank.reduction.kept, rank.reduction.computed
            self.redoes = (
                rank.plan is not None
                and not rank.plan.heal
                and rank.step.may_redo_with(computed, rank.part, all_keep=True)
            )
            deal = rank.step.deal if rank.world.config.max_redo else None
            other_part = computed is not None and bool(misfit(computed, rank.part, deal, all_keep=True))
            if other_part:
                count["lost: another part"] += 1
            count["redos" if self.redoes else "dropped"] += 1
            if not self.redoes and kept is not None and kept == rank.step.top == rank.step.state and not other_part:
                off = rank.world.config.max_redo == 0
                count["lost: redo is off" if off else "lost: first step" if not kept.step else "lost: max_redo"] += 1
            rank.world.note(rank.process.name, "{} step {}", "reduces again" if self.redoes else "drops",
                            rank.step.top.step + 1)  # fmt: skip

    # --- the vote inside the group -------------------------------------------------------------------------------

    def maybe_vote(self) -> None:
        """Vote if reductions and heal are complete, after loading the healed state."""
        rank = self._rank
        if not (rank.ready and rank.reduction.done) or rank.step.phase is not StepPhase.RUNNING:
            return
        if not rank.healing.done:
            rank.wait = "fetch"
            return
        rank.healing.load()
        if rank.node.group in rank.world.vetoes:
            rank.world.vetoes.discard(rank.node.group)
            rank.world.counts["veto"] += 1
            rank.step.objection = rank.step.objection or StepError("the user objects")
        self._vote = rank.step.vote()
        self._wait()
        rank.held.vote((self._vote.quorum_id, self._vote.step))
        rank.node.vote(rank, self._vote)
        rank.world.reach(rank.node, "vote")

    def _wait(self) -> None:
        timeout = self._rank.world.config.timeout
        self._rank.wait = "vote"
        self._rank.deadlines.arm("vote", timeout if self._rank.rank == 0 else 2 * timeout + 1.0)

    # --- the vote between groups: rank 0, for its group ----------------------------------------------------------

    def on_prepared(self, vote: CrossVote | None) -> None:
        """Begin the vote between groups, as rank 0 of a group whose ranks have voted. `vote` None: without a say."""
        if self._vote is None or self._rank.step.phase is not StepPhase.VOTING:
            return  # this rank's deadline has passed meanwhile
        rank, world = self._rank, self._rank.world
        self._crossed = vote is None or vote.ok
        rank.deadlines.disarm("vote")
        rank.wait = "cross"
        rank.deadlines.arm("cross", rank.waits())
        if rank.step.error is not None or rank.mesh is None:
            self._say(False)  # the collectives were released meanwhile
            return
        world.fabric.reduce(rank, rank.mesh, cross_group_vote.row(vote))
        world.reach(rank.node, "cross")

    def on_crossed(self, rows: tuple[tuple[Any, ...], ...]) -> None:
        """Evaluate the votes of all groups."""
        objection = cross_group_vote.objection([min(column) for column in zip(*rows, strict=True)])
        if objection:
            self._rank.world.note(self._rank.process.name, "sees the vote fail: {}", objection)
        self._say(not objection)

    def on_not_crossed(self, error: TorchftXError) -> None:
        """Treat a failed vote between groups as no. Other members may have seen it pass."""
        self._rank.failures.fail(error)
        self._say(False)

    def _say(self, passed: bool) -> None:
        rank = self._rank
        rank.deadlines.disarm("cross")
        rank.budget.end_wait(rank.world.now)
        self._wait()
        rank.node.tell(rank, rank.node.hub.crossed, passed, self._crossed)
        rank.world.reach(rank.node, "crossed")

    # --- the decision --------------------------------------------------------------------------------------------

    def on_decision(
        self, label: tuple[int, int], commit: bool, reason: str, undecided: bool, decision: CopyDecision
    ) -> None:
        """Carry out the group's decision on this rank's step, then begin the next one, settle it, or end."""
        rank, world, vote = self._rank, self._rank.world, self._vote
        if vote is None or (vote.quorum_id, vote.step) != label:
            return
        rank.wait, rank.expects_start = "", commit
        rank.deadlines.disarm("vote")
        before = (rank.step.state, rank.value)
        rank.held.receive(decision, State(vote.step + 1, vote.quorum_id) if commit else None)
        held = Held(vote, rank.reduction.result or (), rank.step.size)
        if commit and self._is_against(label):
            self._throw_away(vote, before)
            return
        undecided = undecided and vote.ok and not commit
        outcome = rank.step.conclude(commit, reason, undecided=undecided)
        self._vote = None
        settles = not commit and world.config.settles and (vote.ok or rank.step.error is not None)
        if not (undecided or settles):
            rank.budget.next_step(world.now)
        if commit:
            self._optimizer_step(held, "commits")
        elif undecided:
            self._held = held
            world.note(rank.process.name, "does not know about step {}: {}", vote.step + 1, outcome.reason)
        else:
            world.note(rank.process.name, "drops step {}: {}", vote.step + 1, outcome.reason)
        world.checker.on_concluded(rank, vote, commit, before)
        if outcome.give_up:
            rank.end(1, outcome.give_up)
        elif commit and rank.node.leaves_after(rank.step.state.step):
            rank.node.leave(rank)
        elif settles:
            rank.failures._abort(rank.failures.config_id, "the step did not commit")
            world.after(world.config.inside[0], rank.process, rank.ask, True)
        else:
            if not commit:
                world.checker.figures["dropped"] += 1
            world.after(world.config.inside[0] + outcome.pause + rank.lateness(), rank.process, rank.again)

    def _is_against(self, label: tuple[int, int]) -> bool:
        """Return whether the script objects to this step, which no rank of the group has committed yet.

        All ranks of its group object alike.
        """
        world, node = self._rank.world, self._rank.node
        group, in_time = node.group, all(r.step.state.step <= label[1] for r in node.ranks)
        if group in world.regrets and world.regrets[group] is None and in_time:
            world.regrets[group] = label
            world.counts["second_thoughts"] += 1
        return world.regrets.get(group) == label

    def _throw_away(self, vote: LocalVote, before: tuple[State, int]) -> None:
        """Drop a decided step, as `train.step.step_loop` does: to the other groups this one has failed in it."""
        rank, world = self._rank, self._rank.world
        outcome = rank.step.conclude(False, "thrown away after it was decided")
        self._vote = None
        rank.budget.next_step(world.now)
        world.note(rank.process.name, "throws step {} away after it was decided", vote.step + 1)
        world.checker.on_thrown_away(rank, vote, before)
        rank.failures.fail(StepError("the step was thrown away"), vote.quorum_id)
        if outcome.give_up:
            rank.end(1, outcome.give_up)
        else:
            world.after(world.config.inside[0] + outcome.pause + rank.lateness(), rank.process, rank.again)

    def _optimizer_step(self, held: Held, how: str) -> None:
        rank, vote = self._rank, held.vote
        rank.value = fold(rank.value, vote.step, held.result, held.size)
        rank.world.note(rank.process.name, "{} step {} in {}", how, vote.step + 1,
                        rank.world.trace.name(vote.quorum_id))  # fmt: skip
        rank.world.checker.on_committed(rank, vote, held.result, held.size)
