"""A client of the peer on the unary service: one group of one rank that follows torchft's rules.

The client sends a heartbeat every 0.1 s, asks with one open call, compares members by their step alone, and
reconfigures when the id in the answer (our config id) changes. It is never notified that a quorum is over, and drops
the step when a reduction fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.sim.base import Process, fold
from tests.sim.collective import Contribution, Mesh
from tests.sim.supervisor_node import HOPELESS_ATTEMPTS
from torchft_x.core import heal
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.messages import lighthouse as m
from torchft_x.core.types import Member, Part, Quorum, State
from torchft_x.errors import CollectiveError, StepError, TorchftXError

if TYPE_CHECKING:
    from tests.sim.world import World

BEAT = 0.1  # seconds between two heartbeats
_RETRY = (0.1, 0.5)  # seconds between two attempts to ask


class PeerNode:
    """Attempts of one group of the peer under the same name with a new nonce, without a supervisor."""

    def __init__(self, world: World, group: str) -> None:
        self.world = world
        self.group = group
        self.site = group
        self.attempts = 0
        self.process = Process(group, group, world.clock_of(group))
        self.process.die()
        self.who = ""
        self.step = 0
        self.hopeless = 0  # number of attempts in a row that were refused beside ours, or saw no complete state
        self.mesh: Mesh | None = None

    @property
    def alive(self) -> bool:
        return not self.process.dead

    @property
    def address(self) -> str:
        return f"{self.site}/{self.who}"

    def start(self) -> None:
        world = self.world
        self.attempts += 1
        self.who = f"{self.group}:{self.attempts}"
        self.process = Process(self.who, self.site, world.clock_of(self.site))
        self.step, self.value, self.failures = 0, fold("init", 0), 0
        self.mesh, self._config_id, self._phase, self._call = None, 0, "idle", 0
        self._plan: QuorumPlan | None = None
        self.quorum: Quorum | None = None
        world.listening[self.address] = self
        self._beat()
        self._ask()

    def crash(self) -> None:
        if not self.alive:
            return
        self.world.note(self.who, "is dead")
        self.process.die()
        self.world.listening.pop(self.address, None)
        self.world.fabric.died(self)
        if self._call:
            self._tell("on_unary_gone", self._call)
        if self.hopeless < HOPELESS_ATTEMPTS:
            self.world.after(self.world.rng.uniform(0.5, 2.0), None, self.start)

    def _tell(self, what: str, *values: object) -> None:
        lighthouse = self.world.lighthouse
        if lighthouse.process is not None:
            self.world.network.send(self.site, lighthouse.process, getattr(lighthouse, what), *values)

    def _beat(self) -> None:
        self._tell("feed", m.Heartbeat(self.who))
        self.world.after(BEAT, self.process, self._beat)

    # --- ask -----------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        self._phase, self._call = "asking", self.world.next_id()
        member = Member(
            replica_id=self.who,
            address=self.address,
            store_address=f"{self.address}/store",
            state=State(self.step),
            commit_failures=self.failures,
        )
        if self.world.lighthouse.process is None:
            self.world.after(self.world.config.latency[1], self.process, self.on_failed, self._call, "refused")
        self._tell("on_unary_quorum", self, self._call, member)
        self.world.after(self.world.config.quorum_timeout, self.process, self._too_late, self._call)

    def _too_late(self, call: int) -> None:
        if call == self._call:
            self._tell("on_unary_gone", call)
            self.on_failed(call, "too late")

    def on_failed(self, call: int | None, sentence: str) -> None:
        if call == self._call:
            self._call, self._phase = 0, "idle"
            self.world.note(self.who, "got no quorum: {}", sentence)
            self.world.after(self.world.rng.uniform(*_RETRY), self.process, self._again)

    def on_refused(self, call: int, sentence: str) -> None:
        """End this attempt after the lighthouse has refused it with a reason."""
        if call == self._call:
            self.world.note(self.who, "is refused: {}", sentence)
            self._despair()

    def _despair(self) -> None:
        self.hopeless += 1
        self.crash()

    def _again(self) -> None:
        if self._phase == "idle":
            self._ask()

    def on_quorum(self, call: int, quorum: Quorum) -> None:
        if call != self._call:
            return
        self._call = 0
        self.quorum = quorum
        by_step = tuple(replace(x, state=State(x.state.step), torn=False) for x in quorum.members)
        try:
            plan = heal.plan(replace(quorum, members=by_step), self.who, 0, init_sync=False)
        except StepError:
            self._despair()
            return
        self._plan, self.hopeless = plan, 0
        if plan.heal:
            self._heal(plan)
        if plan.config_id == self._config_id:
            self._compute()
            return
        self._phase, self._config_id = "configuring", plan.config_id
        if self.mesh is not None:
            self.world.fabric.close(self, self.mesh)
        self.mesh = self.world.fabric.join(self, plan, 0)
        self.world.after(self.world.config.timeout, self.process, self._stuck, "configuring", quorum.id)

    def _heal(self, plan: QuorumPlan) -> None:
        """Copy the source's state at once: the peer's own heal is not under test."""
        source = self.world.listening.get(plan.sources[0].address)
        if isinstance(source, PeerNode) and source.step == plan.top.step:
            self.step, self.value = source.step, source.value

    # --- train ---------------------------------------------------------------------------------------------------

    def on_configured(self, mesh: Mesh, error: TorchftXError | None) -> None:
        if mesh is self.mesh and self._phase == "configuring":
            self._compute() if error is None else self._failed()

    def _compute(self) -> None:
        self._phase = "computing"
        self.world.after(self.world.rng.uniform(*self.world.config.compute), self.process, self._reduce, self.quorum.id)

    def _reduce(self, quorum_id: int) -> None:
        if self._phase != "computing" or self.mesh is None or self._plan is None or self._plan.quorum_id != quorum_id:
            return
        self._phase = "reducing"
        part = Part(self._plan.max_replica_rank, self._plan.carriers)
        gradient = None if part.rank is None else (self.who, self._plan.top.step, self.value, part)
        self.world.after(self.world.config.timeout, self.process, self._stuck, "reducing", quorum_id)
        self.world.fabric.reduce(self, self.mesh, gradient)

    def on_reduced(self, mesh: Mesh, result: tuple[Contribution, ...]) -> None:
        if self._phase != "reducing" or mesh is not self.mesh or self._plan is None:
            return
        if self.step != self._plan.top.step:
            self._failed()
            return
        self.value = fold(self.value, self.step, result)
        self.step += 1
        self.failures = 0
        self._next()

    def on_mesh_error(self, mesh: Mesh, error: CollectiveError) -> None:
        if mesh is self.mesh and self._phase in ("configuring", "reducing"):
            self._failed()

    def _stuck(self, phase: str, quorum_id: int) -> None:
        if self._phase == phase and self.quorum is not None and self.quorum.id == quorum_id:
            self._failed()

    def _failed(self) -> None:
        self.failures += 1
        self._config_id = 0
        if self.mesh is not None:
            self.world.fabric.close(self, self.mesh)
        self._next()

    def _next(self) -> None:
        self._phase = "idle"
        self.world.after(self.world.config.inside[1], self.process, self._again)
