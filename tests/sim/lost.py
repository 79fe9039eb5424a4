"""With several lighthouses: may nobody go on any more, whatever happens next?

Said from the truth, not from what the lighthouses say: what every living group holds, and which last words somebody who
lives can still tell. A job is lost for good if no lighthouse could go on though all living groups came to it. It is so by
the rules (`core.quorum.acceptors`), if hosts are lost together with their supervisors:

* most members of a quorum that is open have gone without a last word, or half of them and the lighthouse that issued it;
* or all that hold its newest state have, while the others still healed. A lease that ends proves nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING

from torchft_x.core.quorum.acceptors import QuorumIntersection
from torchft_x.core.restart.standby import StandbyRecovery
from torchft_x.core.types import Quorum, State

if TYPE_CHECKING:
    from tests.sim.group_node import GroupNode
    from tests.sim.lighthouse_node import LighthouseNode
    from tests.sim.world import World

Living = Mapping[str, "GroupNode"]
"""Replica id -> a life that runs."""


def lost_for_good(world: World) -> bool:
    """See the module. False while a lighthouse is down, and in a world with one."""
    houses = [h for h in world.lighthouses if h.machine is not None]
    if not world.config.standby or len(houses) < len(world.lighthouses):
        return False
    living = {n.replica_id: n for n in world.running()}
    open_ = _open(houses, living)
    if not open_:  # nobody knows of a quorum: only the first lighthouse of a new job begins
        return houses[0].machine is not None and houses[0].machine._config.restarted
    return not any(_goes_on(house, open_, living) for house in houses)


def _open(houses: list[LighthouseNode], living: Living) -> list[Quorum]:
    """All quorums that somebody knows of and that may have to be followed."""
    known = [q for n in living.values() for q in (n.machine.quorum, n.before) if q is not None]
    for house in houses:
        assert house.machine is not None
        known += [*house.machine._tenure.chain.open, *filter(None, [house.machine.current])]
        takeover = house.machine._succession.takeover
        if isinstance(takeover, StandbyRecovery):
            known += takeover._open.values()
    return list({q.id: q for newest in known for q in (*newest.follows, newest)}.values())


def _goes_on(house: LighthouseNode, open_: list[Quorum], living: Living) -> bool:
    """Whether this lighthouse could issue a quorum if all living groups were there, and all supervisors had spoken."""
    coalition = _coalition(house, living)
    assert house.machine is not None
    records = {r.replica_id: r for r in house.machine._roll}
    for quorum in open_:
        received = {r for r, n in living.items() if n.machine.quorum is not None and n.machine.quorum.id > quorum.id}
        if coalition.closes(quorum, received):
            continue
        if not coalition.wins(quorum, living):
            return False
        gone = [m.replica_id for m in quorum.members if m.replica_id not in living]
        unknown = [r for r in gone if r not in coalition.ended and not (r in records and records[r].proof)]
        if unknown and not _is_carried_on(quorum, living):
            return False
    return True


def _coalition(house: LighthouseNode, living: Living) -> QuorumIntersection:
    """What this lighthouse would know of who counts."""
    assert house.machine is not None
    assert house.machine._tenure.coalition is not None
    coalition = deepcopy(house.machine._tenure.coalition)
    for supervisor in house.world.every_supervisor:
        for word in supervisor.words if not supervisor.process.dead else ():
            coalition.end(word.replica_id, word.quorum.id if word.quorum is not None else 0, word.chain)
    for replica_id, node in living.items():
        coalition.belongs(replica_id, node.supervisor.chain)
        coalition.received(replica_id, node.machine.quorum.id if node.machine.quorum is not None else 0)
    return coalition


def _is_carried_on(quorum: Quorum, living: Living) -> bool:
    """R9a: whether a living member of it holds its newest state as one of its carriers, or has committed in it."""
    whole = {m.replica_id: state for m in quorum.members if (state := _held(living.get(m.replica_id))) is not None}
    carriers = {c.replica_id for c in quorum.carriers}
    if len(whole) == len(quorum.members):
        return True
    return any(state > quorum.top or (state == quorum.top and r in carriers) for r, state in whole.items())


def _held(node: GroupNode | None) -> State | None:
    """The state that all ranks of this life hold; None: they hold none."""
    if node is None or any(r.step.torn for r in node.ranks):
        return None
    states = {r.step.state for r in node.ranks}
    return states.pop() if len(states) == 1 else None
