"""The end of a job: groups that have committed the last step leave, evaluate or save, and end with or without an error.

R21 (`core.admission.finished_job`): meanwhile, and after it has ended well, nobody begins the job again. The check uses
the processes' true state and not what was reported to the lighthouse. An end that the lighthouse could not learn of
excuses it, see `Departures._knowable`.
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
"""Seconds within which an address without a session is probed again and has answered."""


@dataclass
class Ending:
    """The way in which this job ends."""

    last_step: int
    seconds: float
    """Longest evaluation, in seconds."""
    fails: float
    """Probability that an evaluation ends with an error."""

    def evaluation(self, world: World) -> tuple[float, int]:
        """Draw the seconds that one evaluation takes and the exit code of its process."""
        return world.rng.uniform(0.0, self.seconds), int(world.rng.chance(self.fails))

    def limit(self, world: World) -> float:
        """Return the seconds in which the job is over after the last fault (L1).

        In that time all train to the end once more, and evaluate.
        """
        config = world.config
        steps = (self.last_step + 3) * (config.compute[1] * config.uneven + 20 * config.latency[1] + 0.1)
        return 2 * world.patience + TIMING.finish_grace + steps + 2 * self.seconds


class Departures:
    """True record of the groups that have left since the newest lineage began, and of the job's groups (R21)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._left: dict[str, GroupNode] = {}  # group -> its attempt that has left, and still runs or has ended well
        self._at: dict[GroupNode, float] = {}  # attempt -> virtual time at which it left
        self._heard: set[str] = set()  # replica ids whose leave has reached a lighthouse
        self._job: set[str] = set()  # groups that were members of the job's quorums
        self._older: set[str] = set()  # groups of the job before this one; a leave of theirs finishes that job

    def leaves(self, node: GroupNode) -> None:
        if node.group in self._older:
            return
        self._left[node.group] = node
        self._at[node] = self._world.now

    def heard(self, replica_id: str) -> None:
        """Record that this member's leave has reached a lighthouse."""
        self._heard.add(replica_id)

    def ends(self, node: GroupNode, code: int) -> None:
        """Record the end of a process. If `code` is not 0, this process has not finished the job."""
        if self._left.get(node.group) is node and code != 0:
            del self._left[node.group]

    def issued(self, quorum: Quorum, *, new_lineage: bool) -> str:
        """Return why this quorum must not be issued, or ''."""
        groups = {group_of(m.replica_id) for m in quorum.members}
        if not new_lineage:
            self._job |= groups
            self._older -= groups
            for group in groups & self._left.keys():  # these groups train again
                del self._left[group]
            return ""
        left, job = dict(self._left), set(self._job)
        self._left.clear()
        self._job = groups
        if groups & left.keys():
            self._older = job - groups
            return ""  # a group that has finished the job begins another one
        for node in filter(self._knowable, left.values()):
            if not node.ended:
                return f"though {node.replica_id}, which has left at the end, still runs"
            if groups <= job:
                return f"though {node.replica_id} has finished the job that all of them were in"
        return ""

    def _knowable(self, node: GroupNode) -> bool:
        """Return whether a lighthouse can know the state of that process.

        It can if the process's supervisor was not away for long, no journal is lost, and either the leave has arrived
        or the process's address could refuse a connect.
        """
        world, supervisor = self._world, node.supervisor
        if world.unproven or supervisor.process.stopped:
            return False
        uplink = supervisor.uplink
        there, house = supervisor.process.site, uplink.lighthouse
        if node.replica_id not in self._heard:
            asked = min(world.now - self._at[node], world.network.passable_for(node.process.site, house.site))
            if asked < _ASKED:
                return False
        if world.network.cannot_pass(there, house.site) or world.network.cannot_pass(house.site, there):
            return False
        if world.shared is not None and (house.machine is None or house.process is None or house.process.stopped):
            return False  # another lighthouse may serve
        return uplink.standing or world.now - uplink._away_since < world.config.lighthouse.lease / 2


def still_busy(world: World) -> list[SupervisorNode]:
    """Return the supervisors whose groups train, evaluate or are to be started again.

    The list is empty if too few groups are left to train: one that waits for those that have finished waits without
    end, as it reports.
    """
    busy = [s for s in world.supervisors.values() if s.wants and s.group not in world.checker.hopeless]
    left = [s for s in busy if s.node is not None and s.node.left]
    return busy if left or len(busy) >= world.config.needed else []
