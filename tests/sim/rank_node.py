"""One rank of one life: what a training script with a Manager does, phase by phase.

::

    ask -> configure -> offer -> heal -> compute -> reduce -> vote -> settle
                        (heal beside compute, unless the quorum is waited for)

Rules are the product's (`core.step`, `core.recovery`); the order of things is that of `train.round`, `train.guard` and
`train.manager`. Parameters are a number that stands for all of their history (`fold`), so equal numbers mean
bit-identical parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.base import Process, fold
from tests.sim.collective import Contribution, Mesh
from tests.sim.deadlines import Deadlines
from tests.sim.guard import Guard
from tests.sim.healing import Healing
from tests.sim.reduction import Reduction
from torchft_x.core import recovery
from torchft_x.core.messages import PushOver
from torchft_x.core.recovery import Plan, WorldSizeMode
from torchft_x.core.step import LocalVote, Phase, Step
from torchft_x.core.types import Quorum
from torchft_x.errors import CollectiveError, ConfigError, DeadlineError, StepError, TorchftXError

if TYPE_CHECKING:
    from tests.sim.group_node import GroupNode


class RankNode:
    """See the module."""

    def __init__(self, node: GroupNode, rank: int, process: Process) -> None:
        world = node.world
        config = world.config
        self.world = world
        self.node = node
        self.rank = rank  # in its group
        self.process = process
        self.step = Step(min_replica_size=config.min_replica_size, max_retries=config.max_retries)
        seed = (node.replica_id, rank) if config.init_sync else (rank,)
        self.value = fold("init", *seed)  # its parameters
        self.healing = Healing(self)
        self.reduction = Reduction(self)
        self.guard = Guard(self)
        self.deadlines = Deadlines(world, process, self)
        self._first = True  # has not asked for its first quorum
        self.wait = ""  # what the training thread waits for, a clause; '' while it computes
        # Of the step in hand:
        self.plan: Plan | None = None
        self.call = 0  # open call to the group server
        self.vote: LocalVote | None = None
        self.mesh: Mesh | None = None  # newest process group, perhaps broken
        self._waits = True  # the training thread waits for quorum and heal before its forward
        self.ready = False  # the quorum is here, and so is its process group, or it is known to be broken

    def __repr__(self) -> str:
        return f"<{self.process.name} {self.step!r}>"

    @property
    def who(self) -> str:
        return self.node.replica_id

    @property
    def site_is_on(self) -> bool:
        return self.process.site not in self.world.network.off

    # --- deadlines -----------------------------------------------------------------------------------------------

    def on_deadline(self, name: str) -> None:
        """What was waited for has not come."""
        world = self.world
        if name == "quorum":
            reason = self.node.why_no_quorum(self.call)
            world.checker.on_deadline(self, name, reason)
            world.note(self.process.name, "got no quorum in time: {}", reason)
            self._hang_up()
            self._unanswered("no quorum in time")
        elif name == "vote":
            self._hang_up()
            self.step.unknown()
            self.end(1, "no decision in time")
        elif name == "configure":
            assert self.mesh is not None
            missing = ", ".join(world.fabric.missing(self.mesh)) or "nobody"
            self.on_configured(self.mesh, DeadlineError(f"not connected in time; missing: {missing}"))
        elif name == "reduce":
            self.reduction.on_failed(DeadlineError("the reduction took too long."))
        else:
            world.transfers.give_up(self)

    def _hang_up(self) -> None:
        self.node.gone(self.call)
        self.call = 0

    # --- ask -----------------------------------------------------------------------------------------------------

    def start_step(self) -> None:
        """zero_grad: the boundary between two steps."""
        node = self.node
        terms = self.step.ask()
        first, self._first = self._first, False
        config = self.world.config
        self._waits = not config.async_quorum or first or terms.state.step == 0
        self.ready = False
        self.plan = self.vote = None
        self.healing.forget()
        self.reduction.forget()
        self.wait = "quorum"
        self.deadlines.arm("quorum", config.quorum_timeout)
        self.call = node.ask(self, terms)
        self.world.reach(node, "ask")
        if not self._waits:
            self._compute()

    def on_quorum(self, call: int, quorum: Quorum) -> None:
        if call != self.call:
            return
        self.call = 0
        self.deadlines.disarm("quorum")
        config = self.world.config
        try:
            plan = recovery.plan(quorum, self.node.replica_id, self.rank, init_sync=config.init_sync)
        except (ConfigError, StepError) as e:
            self.step.unanswered()
            self.world.checker.on_hopeless(self, e)
            self.end(1, str(e))
            return
        self.plan = plan
        participant, size = recovery.participation(
            plan,
            contributes_after_heal=not config.async_quorum,
            mode=WorldSizeMode.FIXED_WITH_SPARES if config.spares else WorldSizeMode.DYNAMIC,
            min_replica_size=config.min_replica_size,
        )
        self.step.begin(plan.quorum_id, plan.top, participant, size)
        self.world.checker.on_begin(self, quorum, plan)
        self._configure(plan)

    def on_failed(self, call: int, sentence: str, retry: bool) -> None:
        """The group server answers a call with an error."""
        if call != self.call:
            return
        self.call = 0
        self.world.checker.on_deadline(self, "call", sentence)
        self.deadlines.disarm("quorum", "vote")
        if self.step.phase is Phase.VOTING:
            self.step.unknown()
            self.end(1, sentence)
        elif retry:
            self._unanswered(sentence)
        else:
            self.step.unanswered()
            self.end(1, sentence)

    def _unanswered(self, why: str) -> None:
        self.step.unanswered()
        if self.world.config.retry_quorum and not self.node.process.dead:
            self.wait = ""
            self.world.after(self.world.rng.uniform(0.01, 0.5), self.process, self._again)
        else:
            self.end(1, why)

    def _again(self) -> None:
        if self.step.phase is Phase.IDLE:
            self.start_step()

    # --- configure -----------------------------------------------------------------------------------------------

    def _configure(self, plan: Plan) -> None:
        if not self.guard.must_configure(plan):
            self._begin_round()
            return
        self.wait = "configure"
        self.deadlines.arm("configure", self.world.config.connect_limit)
        if self.mesh is not None:
            self.world.fabric.close(self, self.mesh)
        self.mesh = self.world.fabric.join(self, plan, self.rank)
        self.world.reach(self.node, "configure")

    def on_configured(self, mesh: Mesh, error: TorchftXError | None) -> None:
        if mesh is not self.mesh or self.wait != "configure" or self.plan is None:
            return
        self.deadlines.disarm("configure")
        self.wait = ""
        if error is not None:
            self.guard.fail(error, self.plan.quorum_id)
        else:
            self.guard.configured()
        self._begin_round()

    def _begin_round(self) -> None:
        """The process group is there, or known to be broken: offer, heal, train."""
        assert self.plan is not None
        self.ready = True
        self.wait = "fetch" if self._waits and self.plan.heal else ""
        self.healing.begin(self.plan, in_place=self._waits)
        if not self._waits:
            self.reduction.begin()
        elif not self.plan.heal:
            self._compute()

    def on_healed(self) -> None:
        """The heal has ended, well or not."""
        if self._waits:
            self._compute()
        else:
            self.maybe_vote()

    # --- reduce --------------------------------------------------------------------------------------------------

    def _compute(self) -> None:
        if self._waits:
            self.wait = ""
        self.reduction.compute()

    def on_reduced(self, mesh: Mesh, result: tuple[Contribution, ...]) -> None:
        self.reduction.on_result(mesh, result)

    def on_mesh_error(self, mesh: Mesh, error: CollectiveError) -> None:
        """The connection to another member broke, or it failed. With nothing in flight the next collective notices."""
        if mesh is not self.mesh:
            return
        if self.wait == "reduce":
            self.reduction.on_failed(error)
        elif self.wait == "configure":
            self.on_configured(mesh, error)

    # --- trouble -------------------------------------------------------------------------------------------------

    def on_over(self, push: PushOver) -> None:
        self.guard.over(push)

    def on_end_of_group(self, sentence: str) -> None:
        self.end(1, sentence)

    def on_server_gone(self) -> None:
        self.end(1, "the group server is gone")

    def end(self, code: int, reason: str) -> None:
        self.node.end_rank(self, code, reason)

    # --- vote and settle -----------------------------------------------------------------------------------------

    def maybe_vote(self) -> None:
        """should_commit: reductions and heal are waited for, what came is loaded, then this rank votes."""
        if not (self.ready and self.reduction.done) or self.step.phase is not Phase.RUNNING:
            return
        if not self.healing.done:
            self.wait = "fetch"
            return
        self.healing.load()
        self.vote = self.step.vote()
        self.wait = "vote"
        self.deadlines.arm("vote", self.world.config.timeout)
        self.call = self.node.vote(self, self.vote)
        self.world.reach(self.node, "vote")

    def on_decision(self, call: int, commit: bool, reason: str) -> None:
        if call != self.call or self.vote is None:
            return
        self.call, self.wait = 0, ""
        self.deadlines.disarm("vote")
        vote, before = self.vote, (self.step.state, self.value)
        outcome = self.step.settle(commit, reason)
        self.vote = None
        if commit:
            self._optimizer_step(vote)
        else:
            self.world.note(self.process.name, "drops step {}: {}", vote.step + 1, outcome.reason)
        self.world.checker.on_settled(self, vote, commit, before)
        if outcome.give_up:
            self.end(1, outcome.give_up)
            return
        if commit and self.node.leaving_at is not None and self.step.state.step >= self.node.leaving_at:
            self.node.leave(self)
            return
        self.world.after(self.world.config.inside[0], self.process, self._again)

    def _optimizer_step(self, vote: LocalVote) -> None:
        result = self.reduction.result or ()
        self.value = fold(self.value, vote.step, result, self.step.size)
        self.world.note(self.process.name, "commits step {} in {}", vote.step + 1,
                        self.world.trace.name(vote.quorum_id))  # fmt: skip
        self.world.checker.on_committed(self, vote, result)
