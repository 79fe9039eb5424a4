"""Traps: faults that strike a group exactly when it next comes to a point of its step (`World.reach`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.faults import Fault, kind
from tests.sim.kinds.links import part
from tests.sim.kinds.processes import pause_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.group_node import GroupNode
    from tests.sim.world import World

POINTS = ("ask", "configure", "fetch", "serve", "reduce", "vote", "decided")
"""Points of a step. `vote`: before the lease is checked; `decided`: after that, before the optimizer steps."""
VOTE_POINTS = ("prepared", "cross", "crossed", "settle")
"""Points of the vote between groups: before it, in it, after it and before the lease is checked, and when settling."""
_SOON = 0.004  # seconds; shorter than a message may take


@kind
def trap_pause(world: World, fault: Fault) -> bool:
    """Stop the group exactly when it next comes to a point of its step (`other`)."""
    return _set_trap(world, fault, _pause_node)


@kind
def trap_crash(world: World, fault: Fault) -> bool:
    """Kill the group exactly when it next comes to a point of its step: as a source ('serve'), a healer ('fetch')."""
    return _set_trap(world, fault, _crash_node)


@kind
def trap_cut(world: World, fault: Fault) -> bool:
    """Cut the group off from the lighthouse, in both directions, exactly at a point of its step (`other`)."""
    return _set_trap(world, fault, _cut_node)


@kind
def trap_break(world: World, fault: Fault) -> bool:
    """Break the group's session, with the messages under way, exactly at a point of its step (`other`).

    The server notices later.
    """
    return _set_trap(world, fault, _break_session)


@kind
def trap_lighthouse(world: World, fault: Fault) -> bool:
    """Kill the lighthouse just after the group has come to a point of its step (`other`). It starts again later."""
    return _set_trap(world, fault, _crash_lighthouse)


def _set_trap(world: World, fault: Fault, act: Callable[[World, GroupNode, float], bool]) -> bool:
    world.traps.setdefault((fault.target, fault.other), []).append((fault.kind, act, fault.seconds))
    return False  # the fault counts when the group comes to the point


def _pause_node(world: World, node: GroupNode, seconds: float) -> bool:
    pause_all(world, node.processes, seconds)
    return True


def _crash_node(world: World, node: GroupNode, seconds: float) -> bool:
    node.kill(-9)
    return True


def _cut_node(world: World, node: GroupNode, seconds: float) -> bool:
    for house in world.lighthouses:
        part(world, Fault(world.now, "part", node.group, seconds, house.site))
    return True


def _break_session(world: World, node: GroupNode, seconds: float) -> bool:
    if node.uplink.stream is None:
        return False
    node.uplink.stream.cut(lose=True, client_late=0.0, server_late=min(seconds, 1.0))
    return True


def _crash_lighthouse(world: World, node: GroupNode, seconds: float) -> bool:
    if world.lighthouse.process is None:
        return False
    world.after(_SOON * world.rng.random(), None, world.lighthouse.crash)
    world.after(_SOON + seconds, None, world.lighthouse.start)
    return True
