"""A simulated cluster: one heap of events, virtual time, everything random from one seed.

::

    world = World(seed, WorldConfig(groups=3))
    world.run_for(10.0)

The same seed and configuration give the same trace, byte for byte. There is no thread, socket or real clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from tests.sim.base import Call, Clock, Process, Rng, Trace
from tests.sim.collective import Fabric
from tests.sim.config import WorldConfig
from tests.sim.ending import Ending
from tests.sim.group_node import GroupNode
from tests.sim.invariants import Checker, Violation
from tests.sim.lighthouse_node import LighthouseNode
from tests.sim.network import Network
from tests.sim.peer_node import PeerNode
from tests.sim.rank_node import RankNode
from tests.sim.shared import SharedDirectory
from tests.sim.supervisor_node import SupervisorNode
from tests.sim.transfer import Transfers
from torchft_x import env

Entry = tuple[float, int, "Process | None", Call, tuple[Any, ...]]
"""(time, number, process it happens in or None, what, arguments)."""


class World:
    """The simulated cluster: owns the heap of events, the random numbers, all nodes, and the traps that are set."""

    def __init__(self, seed: int, config: WorldConfig | None = None) -> None:
        assert env.time_scale() == 1, f"virtual time needs no slower clocks: unset {env.TIME_SCALE}"
        self.seed = seed
        self.config = config or WorldConfig()
        self.now = 0.0
        self.events = 0  # number of events executed
        self.heap: list[Entry] = []  # events to come
        self._numbers = 0  # number of heap entries so far; orders equal times
        self._ids = 0  # newest number of `next_id`
        self.rng = Rng(seed)
        self.trace = Trace(self.config.trace)
        self.counts: Counter[str] = Counter()  # faults that took effect, by kind
        self.checker = Checker(self)
        self.network = Network(self)
        self.fabric = Fabric(self)
        self.transfers = Transfers(self)
        self.shared = SharedDirectory(self) if self.config.standby else None  # directory shared by several lighthouses
        self.lighthouse = LighthouseNode(self)
        self.lighthouses = [self.lighthouse]  # the first lighthouse, and perhaps a standby
        if self.config.standby:
            self.lighthouses.append(LighthouseNode(self, "lh2"))
        self.clocks: dict[str, Clock] = {}  # site -> clock of that host
        self.listening: dict[str, GroupNode | PeerNode] = {}  # address -> node that accepts connections there
        self.nodes: dict[str, GroupNode] = {}  # every attempt of every group, by replica id
        self.supervisors: dict[str, SupervisorNode] = {}  # by group
        self.peers: dict[str, PeerNode] = {}  # by group
        self.slowness: dict[str, tuple[float, float]] = {}  # group -> (factor of compute time, its end)
        self._pace: dict[str, float] = {}  # group -> permanent factor, as machines differ
        self.broken_loads: set[str] = set()  # groups whose next load_state_dict fails
        self.first_steps: dict[str, float] = {}  # group -> earliest end of its next attempt's first step
        self.vetoes: set[str] = set()  # groups whose next vote is no
        self.regrets: dict[str, tuple[int, int] | None] = {}  # group that drops a decided step -> its label
        self.ending: Ending | None = None  # how the training ends; None: it does not end
        # Whether the end of some attempt, or some quorum, may be known to no survivor.
        self.unproven = not (self.config.standby or self.config.journal)
        self.traps: dict[tuple[str, str], list[tuple[str, Callable[[World, GroupNode, float], bool], float]]] = {}
        for house in self.lighthouses:
            house.start()
        for i in range(self.config.groups):
            self.add_group(f"g{i}")
        for i in range(self.config.peers):
            self.add_peer(f"u{i}")

    # --- members -------------------------------------------------------------------------------------------------

    def add_group(self, group: str) -> SupervisorNode:
        supervisor = self.supervisors[group] = SupervisorNode(self, group, group)
        supervisor.start()
        return supervisor

    def add_peer(self, group: str) -> PeerNode:
        peer = self.peers[group] = PeerNode(self, group)
        self.after(self.rng.uniform(*self.config.startup), None, peer.start)
        return peer

    def compute_seconds(self, group: str) -> float:
        """Draw the seconds of the group's next computation. A temporary slowness applies only until its end."""
        seconds = self.rng.uniform(*self.config.compute)
        pace = self._pace.get(group)
        if pace is None:
            pace = self._pace[group] = self.rng.uniform(1.0, self.config.uneven)
        factor, until = self.slowness.get(group, (1.0, 0.0))
        return min(factor * pace * seconds, max(0.0, until - self.now) + pace * seconds)

    def clock_of(self, site: str) -> Clock:
        clock = self.clocks.get(site)
        if clock is None:
            start, drift = self.rng.uniform(10.0, 1000.0), self.config.drift
            rate = self.rng.uniform(1.0 - drift, 1.0 + drift) if drift else 1.0
            clock = self.clocks[site] = Clock(self.now, start, rate)
        return clock

    @property
    def patience(self) -> float:
        """Longest time in seconds until all train together again (L1)."""
        return self.config.long_patience if self.unproven else self.config.patience

    def boot_of(self, site: str) -> str:
        return self.config.lighthouse.boot_id if self.config.one_host else f"boot-{site}"

    def running(self) -> list[GroupNode]:
        """Return the running attempts."""
        return [s.node for s in self.supervisors.values() if s.node is not None and not s.node.ended]

    # --- time ----------------------------------------------------------------------------------------------------

    def at(self, time: float, process: Process | None, call: Call, *args: Any) -> None:
        """Schedule a call at a virtual time, in the given process or in none."""
        self._numbers += 1
        heappush(self.heap, (time, self._numbers, process, call, args))

    def after(self, delay: float, process: Process | None, call: Call, *args: Any) -> None:
        """Schedule a call after so many seconds, in the given process or in none."""
        self._numbers += 1
        heappush(self.heap, (self.now + delay, self._numbers, process, call, args))

    def run_until(self, time: float) -> None:
        """Execute all events up to that virtual time."""
        heap = self.heap
        while heap and heap[0][0] <= time:
            self.now, _, process, call, args = heappop(heap)
            if process is not None and process.stopped:
                if not process.dead:
                    process.backlog.append((call, args))
                continue
            self.events += 1
            call(*args)
        self.now = max(self.now, time)

    def run_for(self, seconds: float) -> None:
        self.run_until(self.now + seconds)

    def run_while(self, condition: Callable[[], bool], limit: float) -> bool:
        """Run while the condition holds, at most `limit` seconds. Return whether it ended."""
        end = self.now + limit
        while condition():
            if self.now >= end or not self.heap:
                return False
            self.run_until(min(end, max(self.now + 0.01, self.heap[0][0])))
        return True

    # --- small services ------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """Return a number never used before, for calls and marks."""
        self._ids += 1
        return self._ids

    def note(self, who: str, what: str, *args: Any) -> None:
        self.trace.note(self.now, who, what, *args)

    def violated(self, invariant: str, what: str) -> None:
        """Raise `Violation` with the trace and the machines' recent decisions."""
        raise Violation(self.seed, invariant, what, self.now, self.trace.lines(), self.stories())

    def stories(self) -> list[str]:
        """Return the recent decisions of each running machine, with their reasons."""
        found = []
        for house in self.lighthouses:
            if house.machine is not None:
                found += [f"{house.name} {line}" for line in house.machine.story(house.clock.read(self.now))]
        for node in self.nodes.values():
            if not node.ended:
                now = node.process.clock.read(self.now)
                found += [f"{node.replica_id} {line}" for line in node.machine.story(now)]
        return found

    # --- what faults do ------------------------------------------------------------------------------------------

    def calm(self, why: str) -> None:
        """Cancel faults that wait for their occasion and have not struck yet."""
        self.note("--- calm", why)
        for waiting in (self.traps, self.fabric.glitches, self.transfers.spoiled, self.broken_loads, self.vetoes):
            waiting.clear()
        self.regrets = {group: label for group, label in self.regrets.items() if label is not None}

    def pause(self, process: Process, *, seen: bool = True) -> None:
        """Stop a process (SIGSTOP). If not `seen`, it is busy instead: it runs, but neither receives nor sends."""
        if not process.stopped:
            process.paused = process.stopped = True
            self.note(process.name, "is stopped" if seen else "is busy")
            for supervisor in self.supervisors.values() if seen else ():
                supervisor.on_stopped(process)

    def resume(self, process: Process) -> None:
        """Continue a process, and execute its backlog now, in order."""
        if not process.paused:
            return
        process.paused = process.stopped = False
        process.resumed = self.now
        self.note(process.name, "goes on")
        for supervisor in self.supervisors.values():
            supervisor.on_going_on(process)
        backlog, process.backlog = process.backlog, []
        for call, args in backlog:
            self.at(self.now, process, call, *args)

    def reach(self, node: GroupNode, point: str) -> None:
        """Spring the traps set for this group at this point of its step."""
        if self.traps:
            armed = self.traps.pop((node.group, point), ())
            for kind, act, seconds in armed:
                self.note(node.replica_id, "is caught at '{}'", point)
                if act(self, node, seconds):
                    self.counts[kind] += 1

    def breaks_load(self, rank: RankNode) -> bool:
        """Return whether the next load of this rank's group fails, once per fault."""
        broken = rank.node.group in self.broken_loads
        self.broken_loads.discard(rank.node.group)
        if broken:
            self.counts["spoil_load"] += 1
        return broken
