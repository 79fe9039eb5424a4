"""Authenticated members that lie: random messages to the lighthouse, in addition to the faults of a run.

A liar is no kind of fault, so that the seeds of the fault schedules keep their meaning. A run is a swarm's scenario (or
none), and a liar that comes and goes while it lasts. Its messages go into the lighthouse's machine as the codec lets
them through. Members that should meet the liar in a process group wait in vain. All invariants hold for the honest
members, and the time between two commits is bounded.
"""

from __future__ import annotations

from collections import Counter
from unittest.mock import Mock

from tests.sim import swarm
from tests.sim.base import Rng
from tests.sim.faults import arm
from tests.sim.lighthouse_node import LighthouseNode
from tests.sim.world import World
from torchft_x.core.messages import lighthouse as m
from torchft_x.core.types import AttemptId, JoinReason, Member, Prepared, Quorum, State

PAUSE = (0.01, 0.6)  # seconds between two lies


class Liar:
    """Member that sends lies until the virtual time `until`, drawn from its own random numbers.

    `joins`: it asks for quorums, too.
    """

    def __init__(self, world: World, seed: int, until: float, *, joins: bool = True) -> None:
        self._world = world
        self._rng = Rng(seed)
        self._until = until  # virtual time of the last lie
        self._joins = joins
        self._session = 0  # number of its open session; 0: none
        self._house: LighthouseNode | None = None  # lighthouse of that session
        self._process: object = None  # process of that lighthouse when the session was opened
        self._name = ""
        self._attempts = 0
        self.told: Counter[str] = Counter()  # number of lies, by kind
        world.at(world.now + 0.5, None, self._act)

    def _act(self) -> None:
        """Lie, hang up or connect, and schedule the next act."""
        world, rng = self._world, self._rng
        if world.now >= self._until:
            self._hang_up()
            return
        world.after(rng.uniform(*PAUSE), None, self._act)
        if self._session and not self._stands():
            self._hang_up()
        if not self._session:
            self._greet()
        elif rng.chance(0.15):
            self._hang_up()
        else:
            self._lie()

    def _stands(self) -> bool:
        house = self._house
        return house is not None and house.process is self._process and self._session in house.sessions

    def _greet(self) -> None:
        house = self._rng.choose(self._world.lighthouses)
        if house.process is None or house.process.stopped or house.machine is None:
            return
        self._attempts += 1
        self._name = f"liar{self._rng.below(3)}:{self._attempts}"
        self._house, self._process = house, house.process
        knows = house.machine.current is not None and not house.machine._next_quorum.takeover.is_open
        hello = m.Hello(
            session=0,
            replica_id=self._name,
            attempt_id=AttemptId(self._attempts, self._world.now, f"token-{self._name}"),
            address=f"liar/{self._name}",
            state=self._run(),
            quorum=self._quorum() if knows and self._rng.chance(0.5) else None,
            granted_through=self._granted(),
            lease_left=self._rng.choose((0.0, 1e9)),
            boot_id=self._rng.choose(("", "host")),
            library=self._rng.choose(("torchft_x/0", "other")),
            runs_on=self._rng.chance(0.5),
        )
        self.told["hello"] += 1
        stream = Mock(session=0, ending=False)  # the liar ignores all answers
        self._world.note("liar", "says hello as {}", hello)
        house._greet(stream, hello)
        self._session = stream.session

    def _hang_up(self) -> None:
        house, session, self._session = self._house, self._session, 0
        if house is not None and session and house.process is self._process:
            stream = house.sessions.get(session)
            if stream is not None:
                house.on_end(stream)

    def _lie(self) -> None:
        house, rng = self._house, self._rng
        if house.process is None or house.process.stopped:
            return
        event = rng.choose((self._join, self._join, self._progress, self._leave, self._pause, self._suspects))()
        if isinstance(event, m.Join) and not self._joins:
            event = self._suspects()
        self.told[type(event).__name__.lower()] += 1
        self._world.note("liar", "says {}", event)
        house.feed(event)

    # --- contents of lies -------------------------------------------------------------------------------------------

    def _step(self) -> int:
        """Draw a step to claim: 0, the newest, or one far beyond."""
        newest = self._world.checker.newest
        there = newest.top.step if newest is not None else 0
        return self._rng.choose((0, there, there + 1, there + 2, there + 1000, 10**9, 1 << 61))

    def _granted(self) -> int:
        """Draw the last granted step to claim, at most 64 beyond the newest step.

        A member of the running quorum that claims a longer grant makes newcomers wait that long
        (docs/security.md#limits); with this bound that is a few seconds.
        """
        there = max((node.machine.state.step for node in self._world.nodes.values()), default=0)
        return min(self._step(), there + 64)  # the newest quorum's step may be a lie of its own

    def _run(self) -> State:
        """Draw the state that the hello claims. In the newest quorum it is bounded as in `_granted` (R16)."""
        state, newest = self._state(), self._world.checker.newest
        inside = newest is not None and state.committed_in == newest.id
        return State(self._granted(), state.committed_in) if inside else state

    def _id(self) -> int:
        """Draw a quorum id to claim: 0, the newest, or one far beyond."""
        newest = self._world.checker.newest
        here = newest.id if newest is not None else 0
        return self._rng.choose((0, here, max(here - 1, 0), here + 1, here + 10**6, 1 << 61))

    def _state(self) -> State:
        return State(self._step(), self._id())

    def _member(self, name: str) -> Member:
        newest = self._world.checker.newest
        outside = newest is None or newest.member(name) is None  # a member could keep others out, against L2
        prepared = Prepared(self._id(), self._step(), self._rng.below(1 << 30)) if self._rng.chance(0.3) else None
        carried = (self._id(), self._id()) if self._rng.chance(0.3) else ()
        return Member(
            name, f"liar/{name}", f"liar/{name}/store", self._state(), torn=self._rng.chance(0.2), prepared=prepared,
            carried=carried, library="torchft_x/0", commit_failures=self._rng.choose((0, 0, 1, 10**6)),
            shrink_only=outside and self._rng.chance(0.1),
        )  # fmt: skip

    def _quorum(self) -> Quorum:
        names = [self._name] if self._rng.chance(0.8) else []
        names += [n for n in self._world.nodes if self._rng.chance(0.3)] or ["nobody:1"]
        members = tuple(self._member(n) for n in sorted(set(names)))
        return Quorum(
            self._id(), self._id(), 7, members, granted_through=self._granted(), lease=self._rng.choose((0.0, 1e6))
        )

    def _join(self) -> m.LighthouseEvent:
        reason = self._rng.choose(tuple(JoinReason))
        suspects = tuple(self._world.nodes) if self._rng.chance(0.3) else ()
        unreached = tuple(self._world.nodes) if self._rng.chance(0.1) else ()
        number = self._rng.below(3)
        return m.Join(self._session, self._member(self._name), reason, suspects, None, number, 0.0, unreached=unreached)

    def _progress(self) -> m.LighthouseEvent:
        return m.Progress(
            self._session, self._id(), self._granted(), self._rng.below(9), self._rng.choose((0.0, 1e-9, 1e9))
        )

    def _leave(self) -> m.LighthouseEvent:
        return m.Leave(self._session, self._state())

    def _pause(self) -> m.LighthouseEvent:
        return m.Paused(self._session, self._rng.choose((0.0, 1.0, 1e9)), "no reason")

    def _suspects(self) -> m.LighthouseEvent:
        return m.Suspected(self._session, (*self._world.nodes, "nobody:1"))


def run(seed: int, *, faults: bool = True, joins: bool = True) -> tuple[World, Liar]:
    """Run a swarm's scenario, with its faults or without, with a liar until the faults are over. Raise `Violation`.

    The time until a newcomer is in (L2 without faults) isn't checked: a member may have let the others run on without
    asking.
    """
    config, scheduled = swarm.scenario(seed)
    world = World(seed, config)
    world.unproven = True  # the lighthouse can't exclude that a liar that is gone held the newest state
    scheduled = scheduled if faults else ()
    until = max((f.at + f.seconds for f in scheduled), default=15.0)
    liar = Liar(world, seed ^ 0x11A2, until, joins=joins)
    arm(world, scheduled)
    world.run_until(until + PAUSE[1] + 0.01)
    world.calm("the faults are over, and the liar is gone")
    swarm.check_liveness(world)
    return world, liar
