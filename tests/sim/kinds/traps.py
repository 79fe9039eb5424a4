"""Traps: a fault that strikes a group exactly when it next comes to a point of its step (`World.reach`)."""

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
"""`vote`: before the lease is checked; `decided`: after it, before the optimizer steps."""
VOTE_POINTS = ("prepared", "cross", "crossed", "settle")
"""With the vote between groups: before it, in it, after it and before the lease is checked; and asking what it was."""
_SOON = 0.004  # seconds; within a message's way


@kind
def trap_pause(world: World, fault: Fault) -> bool:
    """The group is stopped exactly when it next comes to a point of its step (`other`)."""
    return _set_trap(world, fault, _pause_node)


@kind
def trap_crash(world: World, fault: Fault) -> bool:
    """The group dies exactly when it next comes to a point of its step: as a source ('serve'), a healer ('fetch')."""
    return _set_trap(world, fault, _crash_node)


@kind
def trap_cut(world: World, fault: Fault) -> bool:
    """The group is cut off from the lighthouse, both ways, exactly at that point."""
    return _set_trap(world, fault, _cut_node)


@kind
def trap_break(world: World, fault: Fault) -> bool:
    """The group's session breaks exactly at that point, with what is on its way; the server notices later."""
    return _set_trap(world, fault, _break_session)


@kind
def trap_lighthouse(world: World, fault: Fault) -> bool:
    """The lighthouse dies just after the group has come to that point, and is back later."""
    return _set_trap(world, fault, _crash_lighthouse)


def _set_trap(world: World, fault: Fault, act: Callable[[World, GroupNode, float], bool]) -> bool:
    world.traps.setdefault((fault.target, fault.other), []).append((fault.kind, act, fault.seconds))
    return False  # it counts when somebody is caught


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
