"""The simulator as a stage: virtual time, with every invariant checked after every event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.scenario.play import Commit, Record, judge, play
from tests.scenario.values import EVERYBODY, Action, Cut, Join, Kill, Leave, Lose, Pause, Scenario, Start
from tests.sim import swarm
from tests.sim.config import WorldConfig
from tests.sim.faults import Fault, site_of, strike
from tests.sim.group_node import GroupNode
from tests.sim.invariants import Checker
from tests.sim.rank_node import RankNode
from tests.sim.world import World
from torchft_x.core.commit.values import LocalVote
from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.core.types import State

STARTUP = (0.3, 3.0)
"""Seconds that a trainer needs to start: long enough that others make progress meanwhile, as with real processes."""
_POINTS = {"heals": "fetch", "reduces": "reduce"}


class Failed(AssertionError):
    """A story that did not go on, or not as expected, with the last lines of the trace."""


class Watching(Checker):
    """The invariants, and a `Record` of the groups' actions, taken from rank 0 of each."""

    def __init__(self, world: World, record: Record) -> None:
        super().__init__(world)
        self._of = world
        self._record = record
        self._open: dict[RankNode, tuple[int, int]] = {}  # (step, quorum) in doubt, until the next quorum

    def on_committed(self, rank: RankNode, vote: LocalVote, result: tuple[Any, ...], size: int) -> None:
        super().on_committed(rank, vote, result, size)
        if rank.rank == 0:
            self._close(rank, (vote.step + 1, vote.quorum_id))
            self._record.committed(Commit(self._of.now, rank.node.group, vote.step + 1, vote.quorum_id, size))

    def on_concluded(self, rank: RankNode, vote: LocalVote, commit: bool, before: tuple[State, int]) -> None:
        super().on_concluded(rank, vote, commit, before)
        if rank.rank == 0 and not commit:
            self._close(rank, None)
            self._open[rank] = (vote.step + 1, vote.quorum_id)

    def _close(self, rank: RankNode, late: tuple[int, int] | None) -> None:
        """Resolve the step in doubt: it was committed `late`, is reduced again, or counts as dropped."""
        was = self._open.pop(rank, None)
        if was not in (None, late) and not rank.voting.redoes:
            self._record.dropped.add(was)


class Simulation:
    """A simulated cluster as a `Stage`."""

    def __init__(self, scenario: Scenario, seed: int, *, keep: int | None = 400) -> None:
        """`keep`: number of trace lines; None: all."""
        self.record = Record()
        self.scenario = scenario
        self.world = World(seed, replace(config(scenario), trace=keep))
        self.world.checker = Watching(self.world, self.record)
        for house in self.world.lighthouses:  # they have started already, with the previous checker
            self.world.checker.on_lighthouse(house)
        self._ends = 0.0  # virtual time at which the last pause, cut or power failure ends

    def now(self) -> float:
        return self.world.now

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Run event by event, so that a deed happens exactly after the event that it waits for."""
        world, end = self.world, self.world.now + seconds
        while not condition():
            if not world.heap or world.heap[0][0] > end:
                raise Failed(self.tell(f"waited {seconds:g} s for {what}"))
            world.run_until(world.heap[0][0])

    def does(self, group: str, what: str) -> Callable[[], bool]:
        caught: list[float] = []

        def act(world: World, node: GroupNode, seconds: float) -> bool:
            caught.append(world.now)
            return False

        self.world.traps.setdefault((group, _POINTS[what]), []).append(("", act, 0.0))
        return lambda: bool(caught)

    def busy(self) -> bool:
        return self.world.now < self._ends

    def tell(self, what: str) -> str:
        trace = "\n".join(self.world.trace.lines(last=60))
        return f"{trace}\n{self.scenario.name}, seed {self.world.seed}, at {self.world.now:.3f} s: {what}"

    # --- deeds ---------------------------------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        world = self.world
        world.note("--- story", "{}", action)
        if isinstance(action, Kill | Start):
            self._kill(action) if isinstance(action, Kill) else self._start(action)
        elif isinstance(action, Pause):
            self._fault("pause", action.target.group or world.lighthouse.site, action.seconds)
        elif isinstance(action, Cut):
            self._cut(action)
        elif isinstance(action, Lose):
            self._machine_up(action.group)
            self._fault("power", action.group, action.seconds)
        elif isinstance(action, Leave):
            self._machine_up(action.group)
            self._fault("leave", action.group)
            world.supervisors[action.group].wants = False
        else:
            assert isinstance(action, Join)
            world.add_group(action.group)

    def _fault(self, kind: str, target: str, seconds: float = 0.0, other: str = "") -> None:
        self._ends = max(self._ends, self.world.now + seconds)
        strike(self.world, Fault(self.world.now, kind, target, seconds, other))

    def _machine_up(self, group: str) -> None:
        self.until(lambda: not self.world.supervisors[group].process.dead, 30.0, f"the machine of {group} is back")

    def _kill(self, action: Kill) -> None:
        world, target = self.world, action.target
        if target.kind == "trainer":
            self._fault("crash", target.group)
        elif target.kind == "lighthouse":
            self._kill_lighthouse()
        else:
            self._machine_up(target.group)
            supervisor = world.supervisors[target.group]
            supervisor.wants = False
            supervisor.die()

    def _kill_lighthouse(self) -> None:
        """Kill it between two quorums or, with odd seeds, while it sends one: a real signal comes at any instant."""
        house = self.world.lighthouse
        if self.world.seed % 2:
            house.dies_sending, soon = True, self.world.now + 0.5
            self.until(lambda: house.process is None or self.world.now > soon, 5.0, "the lighthouse dies")
            house.dies_sending = False
        house.crash()

    def _start(self, action: Start) -> None:
        if action.target.kind == "lighthouse":
            self.world.lighthouse.start()
        else:
            self.world.supervisors[action.target.group].restore_power()

    def _cut(self, action: Cut) -> None:
        world = self.world
        ours = [action.group, f"s{action.group}"]
        if action.other == EVERYBODY:
            theirs = [world.lighthouse.site, *(g for g in world.supervisors if g != action.group)]
        else:
            theirs = [world.lighthouse.site if action.other == "lighthouse" else action.other]
        for a in ours:
            for b in theirs:
                self._fault("part", site_of(world, a), action.seconds, site_of(world, b))


def config(scenario: Scenario) -> WorldConfig:
    """Return the scenario's settings, and otherwise the product's own times, as virtual time costs nothing."""
    product = LighthouseConfig()
    lighthouse = replace(
        product,
        min_replicas=1,
        silence=SilenceLimits.all(scenario.heartbeat_timeout),
        lease=scenario.lease or product.lease,
        join_timeout=2 * STARTUP[1],
        boot_id="host",
    )
    return WorldConfig(
        groups=scenario.groups,
        ranks=1,
        min_replica_size=1,
        lighthouse=lighthouse,
        timeout=scenario.timeout,
        quorum_timeout=60.0,  # as in train.setup.options
        endures=lighthouse.lease + lighthouse.lease_margin,
        retry_quorum=False,  # a script ends with the DeadlineError
        connect_limit=10.0,  # as in comm.gloo
        keepalive=15.0,  # as in rpc.transport.grpc_options
        welcome_timeout=5.0,  # as in rpc.transport.session
        startup=STARTUP,
        commit_vote=True,
        runs_on=True,
        max_redo=2,  # as in core.commit.step
    )


def finish(stage: Simulation) -> None:
    """Play the scenario to its end. Raise `Failed`, or the simulator's `Violation`."""
    scenario = stage.scenario
    play(scenario, stage)
    swarm.check_liveness(stage.world)
    for group, supervisor in stage.world.supervisors.items():
        stage.record.attempts[group] = supervisor.attempts
    findings = judge(scenario, stage.record)
    if findings:
        raise Failed(stage.tell("\n".join(findings)))
