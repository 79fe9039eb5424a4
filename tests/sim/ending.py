"""The end of a job: who has committed the last step leaves, its process lives on for a while (it evaluates, saves), and ends well or not.

R21 (`core.admission.finished_job`): meanwhile, and after it has ended well, nobody begins the job again. The truth is the processes', not what the
lighthouse was told: an end that it could not hear of excuses it, see `Departures._knowable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchft_x.core.types import Quorum, group_of
from torchft_x.timing import TIMING

if TYPE_CHECKING:
    from tests.sim.group_node import GroupNode
    from tests.sim.supervisor_node import SupervisorNode
    from tests.sim.world import World

_ASKED = 2.0
"""Seconds within which an address that has no session is asked again whether it accepts connections, and answers."""


@dataclass
class Ending:
    """How this job ends."""

    last_step: int
    seconds: float
    """An evaluation takes at most."""
    fails: float
    """How likely it ends with an error."""

    def evaluation(self, world: World) -> tuple[float, int]:
        """How long one takes, and with what code its process ends."""
        return world.rng.uniform(0.0, self.seconds), int(world.rng.chance(self.fails))

    def limit(self, world: World) -> float:
        """Seconds in which the job is over after the last fault (L1): all train to the end once more, and evaluate."""
        config = world.config
        steps = (self.last_step + 3) * (config.compute[1] * config.uneven + 20 * config.latency[1] + 0.1)
        return 2 * world.patience + TIMING.finish_grace + steps + 2 * self.seconds


class Departures:
    """Who has left at the end, in truth, since the newest lineage began; and who was in the job."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._left: dict[str, GroupNode] = {}  # group -> its life that has left; it runs, or has ended well
        self._at: dict[GroupNode, float] = {}  # when it left
        self._heard: set[str] = set()  # replica ids of which a lighthouse has heard that
        self._job: set[str] = set()  # groups that were members of its quorums
        self._older: set[str] = set()  # groups of a job before this one: what they finish yet is that one

    def leaves(self, node: GroupNode) -> None:
        if node.group in self._older:
            return
        self._left[node.group] = node
        self._at[node] = self._world.now

    def heard(self, replica_id: str) -> None:
        """Its leave has reached a lighthouse."""
        self._heard.add(replica_id)

    def ends(self, node: GroupNode, code: int) -> None:
        """Its process has ended. Not well: then the job is not finished by it."""
        if self._left.get(node.group) is node and code != 0:
            del self._left[node.group]

    def issued(self, quorum: Quorum, *, new_lineage: bool) -> str:
        """Why this quorum may not be, or ''."""
        groups = {group_of(m.replica_id) for m in quorum.members}
        if not new_lineage:
            self._job |= groups
            self._older -= groups
            for group in groups & self._left.keys():  # it has come back
                del self._left[group]
            return ""
        left, job = dict(self._left), set(self._job)
        self._left.clear()
        self._job = groups
        if groups & left.keys():
            self._older = job - groups
            return ""  # who has finished the job begins another one
        for node in filter(self._knowable, left.values()):
            if not node.ended:
                return f"though {node.replica_id}, which has left at the end, still runs"
            if groups <= job:
                return f"though {node.replica_id} has finished the job that all of them were in"
        return ""

    def _knowable(self, node: GroupNode) -> bool:
        """Whether a lighthouse can know how that process fares: its supervisor was not away for long, nothing that was
        written down is lost, and its leave has arrived or its address could refuse a connect."""
        world, supervisor = self._world, node.supervisor
        if world.unproven or supervisor.process.stopped:
            return False
        uplink = supervisor.uplink
        there, house = supervisor.process.site, world.lighthouses[uplink.failover.at]
        if node.replica_id not in self._heard:
            asked = min(world.now - self._at[node], world.network.passable_for(node.process.site, house.site))
            if asked < _ASKED:
                return False
        if world.network.cannot_pass(there, house.site) or world.network.cannot_pass(house.site, there):
            return False
        if world.shared is not None and (house.machine is None or house.process is None or house.process.stopped):
            return False  # another one may serve
        return uplink.standing or world.now - uplink._away_since < world.config.lighthouse.lease / 2


def still_busy(world: World) -> list[SupervisorNode]:
    """Return whose group trains, evaluates or is to be started again; none, where too few are left for anybody to train: who
    waits for those that have finished waits for ever, as it says."""
    busy = [s for s in world.supervisors.values() if s.wants and s.group not in world.checker.hopeless]
    left = [s for s in busy if s.node is not None and s.node.left]
    return busy if left or len(busy) >= world.config.needed else []
