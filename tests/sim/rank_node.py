"""One rank of one attempt: the phases of a training script with a Manager.

::

    ask -> configure -> offer -> heal -> compute -> reduce -> vote -> settle
     ^                  (heal beside compute, unless the quorum is waited for)
     +--- a step that did not commit is settled by the next quorum: late commit, redo, or dropped (`voting`)

The rules are the product's (`core.commit.step`, `core.heal`), as is the handling of errors (`train.context.failures`).
The order of calls is that of `train.step.quorum_round` and `train.manager`. A number stands for the parameters and for
all of their history (`fold`), so that equal numbers mean bit-identical parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.sim.base import Process, fold
from tests.sim.collective import Mesh
from tests.sim.data import Copy
from tests.sim.deadlines import Deadlines
from tests.sim.healing import Healing
from tests.sim.held import HeldState
from tests.sim.reduction import Reduction
from tests.sim.voting import Voting
from torchft_x.core import heal
from torchft_x.core.commit.step import Step, StepPhase
from torchft_x.core.commit.values import Terms
from torchft_x.core.data.deal import deals_of
from torchft_x.core.data.state import DataState, StreamState
from torchft_x.core.heal import QuorumPlan, WorldSizeMode
from torchft_x.core.training.step_clock import StepTimeEstimate, WaitBudget
from torchft_x.core.types import JoinReason, Part, Prepared, Quorum, State
from torchft_x.errors import CollectiveError, DeadlineError, StepError, TorchftXError
from torchft_x.timing import TIMING
from torchft_x.train.context.failures import StepFailures

if TYPE_CHECKING:
    from tests.sim.group_node import GroupNode


class _TraceLog:
    """Logger that writes the product's log lines to the trace."""

    def __init__(self, rank: RankNode) -> None:
        self._rank = rank

    def info(self, text: str, *args: Any) -> None:
        self._rank.world.note(self._rank.process.name, "{}", text % args)

    warning = info


_NO_EVENTS = SimpleNamespace(emit=lambda *args, **values: None)


class RankNode:
    """One rank: owns its phase, its deadlines and the parts of a step (heal, reduction, vote)."""

    def __init__(self, node: GroupNode, rank: int, process: Process) -> None:
        world = node.world
        config = world.config
        self.world = world
        self.node = node
        self.rank = rank  # rank in its group
        self.process = process
        self.step = Step(
            min_replica_size=config.min_replica_size, max_retries=config.max_retries, max_redo=config.max_redo
        )
        seed = (node.replica_id, rank) if config.init_sync else (rank,)
        self.value = fold("init", *seed)  # number that stands for its parameters
        self.trained = 0  # ledger of the samples in them (`tests.sim.data`)
        if config.data is not None:
            streams = StreamState((0,) * config.data.slots)
            self.step.deal_data(streams if config.streams else DataState(0, config.samples), config.data)
        self.healing = Healing(self)
        self.reduction = Reduction(self)
        self.voting = Voting(self)
        self.failures = StepFailures(self.step, self, _TraceLog(self), _NO_EVENTS)  # type: ignore[arg-type]
        self.held = HeldState(self, node.supervisor.memory)
        self.deadlines = Deadlines(world, process, self)
        self._first = True  # whether this rank has not asked for its first quorum
        self.pace = StepTimeEstimate()  # seconds of a step
        self.budget = WaitBudget(world.now, most=config.timeout)  # time to wait for other groups
        self.hung = False  # its training thread hangs in a computation
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []  # calls to make when the hang is over
        self.wait = ""  # name of the training thread's wait; '' while it computes
        # State of the present step:
        self.plan: QuorumPlan | None = None
        self.part = Part(None, ())
        self.call = 0  # open call to the group server
        self.mesh: Mesh | None = None  # newest process group, perhaps broken
        self._waits = True  # the training thread waits for quorum and heal before its forward
        self.expects_start = False  # after a commit rank 0 announces how the next step begins
        self._awaits_start = False  # this rank waits for rank 0's announcement
        self._connects_since = 0.0  # virtual time at which the newest configure began
        self._start: tuple[bool, int, State] | None = None  # rank 0's announcement, if it came early
        self._terms: Terms | None = None  # terms of the newest ask
        self._quorum: Quorum | None = None  # newest quorum received
        self.ready = False  # quorum and process group are there, or the group is known to be broken

    @property
    def who(self) -> str:
        return self.node.replica_id

    @property
    def site_is_on(self) -> bool:
        return self.process.site not in self.world.network.off

    @property
    def copy(self) -> Copy:
        """Contents of this rank's state, as others copy it."""
        return Copy(self.value, self.trained, self.step.data)

    def load(self, copy: Copy) -> DataState | None:
        """Take over a copy, but for the position in the data, which is returned: `step` takes it with the state."""
        self.value, self.trained, data = copy
        return data

    # --- a training thread that hangs, and how long others wait for it ---------------------------------------------

    def holds(self, go_on: Callable[..., None], *args: Any) -> bool:
        """Return whether the training thread hangs here. `go_on` is called when the hang is over."""
        if self.hung:
            self._held.append((go_on, args))  # the call of an abandoned computation recognises that itself
        return self.hung

    def wake(self) -> None:
        """Continue the calls that a hang has held up."""
        self.hung = False
        held, self._held = self._held, []
        for go_on, args in held:
            self.world.after(0.0, self.process, go_on, *args)

    def waits(self) -> float:
        """Begin to wait for other groups. Return the seconds that this may take."""
        quorum = self.node.machine.quorum
        self.budget.somebody_heals = (
            quorum is not None
            and len(quorum.carriers) < len(quorum.members)
            and any(m not in quorum.carriers and m.replica_id != self.who for m in quorum.members)
        )
        return self.budget.start_wait(self.world.now, connected=self.node.uplink.standing)

    # --- deadlines -----------------------------------------------------------------------------------------------

    def on_deadline(self, name: str) -> None:
        """Handle a wait that has timed out."""
        world = self.world
        if name == "quorum":
            reason = self.node.why_no_quorum(self.call)
            if self._awaits_start:
                self._awaits_start, self.expects_start = False, True
                reason = "group rank 0 has not begun the next step."
            world.checker.on_deadline(self, name, reason)
            world.note(self.process.name, "got no quorum in time: {}", reason)
            self.node.gone(self.call)
            self.call = 0
            self._unanswered("no quorum in time")
        elif name == "vote":
            if self.rank == 0:
                self.node.hub.give_up()
            self.step.decision_lost()
            self.end(1, "no decision in time")
        elif name == "configure":
            missing = ", ".join(world.fabric.missing(self.mesh)) or "nobody"
            self.on_configured(self.mesh, DeadlineError(f"not connected in time; missing: {missing}"))
        elif name == "reduce":
            self.reduction.on_failed(DeadlineError("the reduction took too long."))
        elif name == "cross":
            self.voting.on_not_crossed(DeadlineError("the vote between groups took too long."))
        else:
            world.transfers.give_up(self)

    def on_expired(self, call: int) -> None:
        """End the wait for a quorum after the usual time, as the lighthouse waits for nothing that would take more."""
        if call == self.call and self.wait == "quorum":
            self.deadlines.disarm("quorum")
            self.on_deadline("quorum")

    # --- ask -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the training script. Where others train, the first step is made alone (`train.heal.rehearsal`)."""
        world = self.world
        if not (world.config.rehearses and self.node.uplink.others_train):
            self.ask()
            return
        world.note(self.process.name, "makes its first step for itself")
        seconds = world.compute_seconds(self.node.group)
        world.after(seconds, self.process, self._rehearsed)

    def _rehearsed(self) -> None:
        if not self.holds(self._rehearsed):
            self.budget.next_step(self.world.now)
            self.ask()

    def ask(self, settling: bool = False) -> None:
        """Ask for a quorum at the boundary between two steps (zero_grad).

        With `settling`, should_commit asks: the step did not commit, and the next quorum decides what becomes of it.
        """
        node = self.node
        self.held.restore() if settling else self.held.at_boundary()
        terms = self.step.ask()
        first, self._first = self._first, False
        config = self.world.config
        # The next quorum may still commit an undecided step, so that no forward may begin from the present parameters.
        self._waits = not config.async_quorum or first or terms.state.step == 0 or settling or self.voting.open
        self.ready = False
        self.plan = None
        self.healing.forget()
        self.voting.forget(settling=settling)
        if settling:
            self.reduction.keep()
        else:
            self.reduction.forget()
            self.pace.begin(self.world.now)
        self.wait = "quorum"
        self.deadlines.arm("quorum", config.quorum_timeout + config.endures)
        self._terms = terms
        expects, self.expects_start = self.expects_start and not settling, False
        if self.rank == 0 and node.hub.owes_start and not settling:
            self.call, on = node.ask_now(self, terms)
            node.hub.start(terms.state.committed_in, terms.state, on)
        elif expects:
            self.call, self._awaits_start = 0, True
            if self._start is not None:
                self.on_start(*self._start)
        else:
            self.call = node.ask(self, terms)
        self.world.reach(node, "settle" if settling else "ask")
        if not self._waits:
            self._compute()

    def on_start(self, runs_on: bool, quorum_id: int, state: State) -> None:
        """Begin the step after a commit as rank 0 has announced, perhaps before this rank has come to it."""
        if not self._awaits_start:
            self._start = (runs_on, quorum_id, state)
            return
        self._start, self._awaits_start = None, False
        if not runs_on:
            self.call = self.node.ask(self, self._terms)
            return
        assert self._quorum.id == quorum_id, "all ranks of a group hold the same quorum"
        self.on_quorum(0, self._quorum, state, None)
        if self._terms.reason is JoinReason.FAILED and self.plan is not None:
            self.failures.fail(CollectiveError("the process group broke after the last commit"), self.plan.quorum_id)

    def on_quorum(self, call: int, quorum: Quorum, base: State | None, commit: Prepared | None) -> None:
        """Begin the round of a quorum: plan the heal, draw the part, configure the process group."""
        if call != self.call:
            return
        self.call = 0
        self.deadlines.disarm("quorum")
        config = self.world.config
        try:
            plan = heal.plan(quorum, self.node.replica_id, self.rank, init_sync=config.init_sync, base=base)
        except StepError as e:
            self.step.ask_failed()
            self.end(1, str(e))
            return
        self.plan, self._quorum = plan, quorum
        part = self.part = heal.participation(
            plan,
            contributes_after_heal=not config.async_quorum,
            mode=WorldSizeMode.FIXED_WITH_SPARES if config.spares else WorldSizeMode.DYNAMIC,
            min_replica_size=config.min_replica_size,
        )
        first, later = deals_of(quorum, part, config.data)
        deal = first if base is None else later
        ended = self.failures.begin(plan, plan.top, part.rank, part.size, commit, deal)
        self.voting.on_begin(ended)
        self.world.checker.on_begin(self, quorum, plan)
        self._configure(plan)

    def on_failed(self, call: int, sentence: str, retry: bool) -> None:
        """Handle an error that the group server has answered a call with."""
        if call != self.call:
            return
        self.call = 0
        self.world.checker.on_deadline(self, "call", sentence)
        self.deadlines.disarm("quorum")
        self._unanswered(sentence, retry)

    def _unanswered(self, why: str, retry: bool = True) -> None:
        self.step.ask_failed()
        if retry and self.world.config.retry_quorum and not self.node.process.dead:
            self.wait = ""
            self.world.after(self.world.rng.uniform(0.01, 0.5), self.process, self.again)
        else:
            self.end(1, why)

    def lateness(self) -> float:
        """Draw the seconds after which this rank comes to the next step."""
        apart = self.world.config.apart
        return self.world.rng.uniform(0.0, apart) if apart else 0.0

    def again(self) -> None:
        """Begin the next step, unless another phase has begun."""
        if not self.holds(self.again) and self.step.phase is StepPhase.IDLE:
            self.ask()

    # --- configure -----------------------------------------------------------------------------------------------

    def _configure(self, plan: QuorumPlan) -> None:
        # The callback is empty, as the process group is made in the events that follow.
        if self.failures.configure(plan, lambda: None) is None:
            return self._begin_round()
        self.wait, self._connects_since = "configure", self.world.now
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
            if self.world.now - self._connects_since >= TIMING.slow_connect:
                self.step.not_reached(self.plan.quorum_id, self._silent(mesh))
            self.failures.fail(error, self.plan.quorum_id)
        self._begin_round()

    def _silent(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the members of the mesh whose hosts do not answer (`train.context.peer_links`)."""
        network, nodes = self.world.network, self.world.nodes
        sites = [(who, nodes[who].process.site) for who in mesh.names if who in nodes]
        return tuple(who for who, site in sites if site in network.off or network.cannot_pass(self.process.site, site))

    def _begin_round(self) -> None:
        """Offer, heal and train, once the process group is configured or known to be broken."""
        self.ready = True
        self.wait = "fetch" if self._waits and self.plan.heal else ""
        self.healing.begin(self.plan, in_place=self._waits)
        if not self._waits:
            self.reduction.begin()
        elif not self.plan.heal:
            self._compute()

    def on_healed(self) -> None:
        """Continue the step after the heal has ended, with success or not."""
        self._compute() if self._waits else self.voting.maybe_vote()

    # --- reduce --------------------------------------------------------------------------------------------------

    def _compute(self) -> None:
        if self._waits:
            self.wait = ""
        self.reduction.begin() if self.voting.redoes else self.reduction.compute()

    def on_reduced(self, mesh: Mesh, result: tuple[tuple[Any, ...], ...]) -> None:
        if mesh is self.mesh and self.wait == "cross":
            self.voting.on_crossed(result)
        elif mesh is self.mesh and self.wait == "reduce":
            self.reduction.result = result
            self.reduction.end()

    def on_mesh_error(self, mesh: Mesh, error: CollectiveError) -> None:
        """Handle a broken connection to another member, or a failed collective.

        If no collective is in flight, the next one fails.
        """
        if mesh is not self.mesh:
            return
        if self.wait == "reduce":
            self.reduction.on_failed(error)
        elif self.wait == "cross":
            self.voting.on_not_crossed(error)
        elif self.wait == "configure":
            self.on_configured(mesh, error)

    # --- trouble -------------------------------------------------------------------------------------------------

    def abort(self, config_id: int) -> None:
        """Release the collectives in flight: this rank's and, by the closed connections, those of the other members."""
        if self.mesh is not None:
            self.world.fabric.close(self, self.mesh)
            error = CollectiveError("it was released")
            self.world.after(self.world.config.inside[0], self.process, self.on_mesh_error, self.mesh, error)

    def end(self, code: int, reason: str) -> None:
        """End this rank's process, and with it the group."""
        self.node.end_rank(self, code, reason)
