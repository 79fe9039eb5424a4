"""Faults: what kinds there are, what each does to a world, and how one is written down.

A schedule is a tuple of `Fault` values; `arm` puts it on a world's heap. A fault whose target is not there when its
time comes does nothing and is not counted. A kind is one function in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.base import Process
from tests.sim.group_node import GroupNode
from tests.sim.uplink import Uplink

if TYPE_CHECKING:
    from tests.sim.world import World

POINTS = ("ask", "configure", "fetch", "serve", "reduce", "vote", "decided")
"""Where a trap can catch a group: see `World.reach`. `vote`: before the lease is checked; `decided`: after it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `target`: a group, a site, or empty where the kind needs none; `other`: a second one, or a point."""

    at: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    other: str = ""

    def __str__(self) -> str:
        parts = [f"{self.at:8.3f} s", self.kind, self.target, self.other]
        return " ".join(p for p in parts if p) + (f" for {self.seconds:.3f} s" if self.seconds else "")


Act = Callable[["World", Fault], bool]
"""Carries the fault out; False: there was nothing to do it to."""


def arm(world: World, faults: Iterable[Fault]) -> None:
    for fault in faults:
        world.at(fault.at, None, strike, world, fault)


def strike(world: World, fault: Fault) -> None:
    """The fault happens now."""
    world.note("--- fault", "{}", fault)
    if KINDS[fault.kind](world, fault):
        world.counts[fault.kind] += 1


def _node(world: World, group: str) -> GroupNode | None:
    supervisor = world.supervisors.get(group)
    return supervisor.node if supervisor is not None and supervisor.running else None


# --- processes -------------------------------------------------------------------------------------------------------


def crash(world: World, fault: Fault) -> bool:
    """kill -9 of all processes of a group; the supervisor starts it again. Of a peer's client, too."""
    if fault.target in world.peers:
        alive = world.peers[fault.target].alive
        world.peers[fault.target].crash()
        return alive
    node = _node(world, fault.target)
    if node is not None:
        node.kill(-9)
    return node is not None


def crash_rank(world: World, fault: Fault) -> bool:
    """kill -9 of one rank (`other`); torchrun ends the others a moment later."""
    node = _node(world, fault.target)
    if node is None:
        return False
    rank = node.ranks[int(fault.other or 0) % len(node.ranks)]
    node.end_rank(rank, -9, "killed")
    return True


def pause(world: World, fault: Fault) -> bool:
    """SIGSTOP of all processes of a group, or of one rank (`other`), or of the lighthouse; then SIGCONT."""
    return _pause(world, _processes(world, fault), fault.seconds)


def _processes(world: World, fault: Fault) -> list[Process]:
    if fault.target == world.lighthouse.site:
        return [world.lighthouse.process] if world.lighthouse.process is not None else []
    if fault.target in world.peers:
        return [world.peers[fault.target].process]
    node = _node(world, fault.target)
    if node is None:
        return []
    return [node.processes[int(fault.other) % len(node.processes)]] if fault.other else node.processes


def _pause(world: World, processes: list[Process], seconds: float) -> bool:
    stopped = [p for p in processes if not p.stopped]
    for process in stopped:
        world.pause(process)
        world.after(seconds, None, world.resume, process)
    return bool(stopped)


def trap_pause(world: World, fault: Fault) -> bool:
    """The group is stopped exactly when it next comes to a point of its step (`other`)."""
    return _set_trap(world, fault, _pause_node)


def trap_crash(world: World, fault: Fault) -> bool:
    """The group dies exactly when it next comes to a point of its step: as a source ('serve'), a healer ('fetch')."""
    return _set_trap(world, fault, _crash_node)


def trap_cut(world: World, fault: Fault) -> bool:
    """The group is cut off from the lighthouse, both ways, exactly at that point."""
    return _set_trap(world, fault, _cut_node)


def _set_trap(world: World, fault: Fault, act: Callable[[World, GroupNode, float], None]) -> bool:
    world.traps.setdefault((fault.target, fault.other), []).append((act, fault.seconds))
    return True


def _pause_node(world: World, node: GroupNode, seconds: float) -> None:
    _pause(world, node.processes, seconds)


def _crash_node(world: World, node: GroupNode, seconds: float) -> None:
    node.kill(-9)


def _cut_node(world: World, node: GroupNode, seconds: float) -> None:
    part(world, Fault(world.now, "part", node.group, seconds, world.lighthouse.site))


def slow(world: World, fault: Fault) -> bool:
    """Steps of a group take ten times as long."""
    world.slowness[fault.target] = 10.0
    world.after(fault.seconds, None, _forget_slowness, world, fault.target)
    return _node(world, fault.target) is not None


def _forget_slowness(world: World, group: str) -> None:
    world.slowness.pop(group, None)


def stall(world: World, fault: Fault) -> bool:
    """The clock of the group's host stands still (a suspended virtual machine), while its processes go on."""
    clock = world.clocks.get(fault.target)
    if clock is None:
        return False
    clock.stall(world.now)
    world.after(fault.seconds, None, _clock_goes_on, world, fault.target)
    return True


def _clock_goes_on(world: World, site: str) -> None:
    world.clocks[site].go_on(world.now)


def power(world: World, fault: Fault) -> bool:
    """The group's whole host loses its power, supervisor and all, and is back later."""
    supervisor = world.supervisors.get(fault.target)
    if supervisor is None or supervisor.process.dead or not supervisor.wants:
        return False
    supervisor.lose_power()
    world.after(fault.seconds, None, supervisor.restore_power)
    return True


# --- the network -----------------------------------------------------------------------------------------------------


def cut(world: World, fault: Fault) -> bool:
    """A session breaks. `other`: who notices first (client or server); with 'lose', what is on its way is lost."""
    uplink: Uplink | None = None
    node = _node(world, fault.target)
    if fault.target.startswith("s") and fault.target[1:] in world.supervisors:
        uplink = world.supervisors[fault.target[1:]].uplink
    elif node is not None:
        uplink = node.uplink
    if uplink is None or uplink.stream is None:
        return False
    late = fault.seconds
    client_late, server_late = (0.0, late) if "client" in fault.other else (late, 0.0)
    uplink.stream.cut("the connection broke", lose="lose" in fault.other, client_late=client_late,
                      server_late=server_late)  # fmt: skip
    return True


def delay(world: World, fault: Fault) -> bool:
    """Messages between a group and the lighthouse take up to 0.3 s, each its own time."""
    pairs = [(fault.target, world.lighthouse.site), (world.lighthouse.site, fault.target)]
    for pair in pairs:
        world.network.slow[pair] = 0.3
    world.after(fault.seconds, None, _forget_delay, world, pairs)
    return True


def _forget_delay(world: World, pairs: list[tuple[str, str]]) -> None:
    for pair in pairs:
        world.network.slow.pop(pair, None)


def part(world: World, fault: Fault) -> bool:
    """Nothing passes between two sites, either way."""
    return _block(world, [(fault.target, fault.other), (fault.other, fault.target)], fault.seconds)


def part_one_way(world: World, fault: Fault) -> bool:
    """Nothing passes from one site to another; the other way all does."""
    return _block(world, [(fault.target, fault.other)], fault.seconds)


def _block(world: World, pairs: list[tuple[str, str]], seconds: float) -> bool:
    fresh = [pair for pair in pairs if pair not in world.network.blocked]
    for pair in fresh:
        world.network.block(*pair)
        world.after(seconds, None, world.network.unblock, *pair)
    return bool(fresh)


# --- collectives and heals -------------------------------------------------------------------------------------------


def glitch(world: World, fault: Fault) -> bool:
    """The group's next reduction fails on some members though all live: a false suspicion."""
    world.fabric.glitches.add(fault.target)
    return _node(world, fault.target) is not None


def late(world: World, fault: Fault) -> bool:
    """A group's results come 0.2 s late."""
    world.fabric.late[fault.target] = 0.2
    world.after(fault.seconds, None, _forget_lateness, world, fault.target)
    return _node(world, fault.target) is not None


def _forget_lateness(world: World, group: str) -> None:
    world.fabric.late.pop(group, None)


def spoil_fetch(world: World, fault: Fault) -> bool:
    """The group's next heal breaks off half-way."""
    world.transfers.spoiled.add(fault.target)
    return True


def spoil_load(world: World, fault: Fault) -> bool:
    """What the group's next heal brings can't be loaded: the rank is torn."""
    world.broken_loads.add(fault.target)
    return True


# --- members ---------------------------------------------------------------------------------------------------------


def leave(world: World, fault: Fault) -> bool:
    """A graceful leave at the next boundary; wanted again later, if `seconds` says when."""
    node = _node(world, fault.target)
    if node is None or node.leaving_at is not None:
        return False
    node.leaving_at = max(r.step.state.step for r in node.ranks) + 1
    if fault.seconds:
        world.after(fault.seconds, None, node.supervisor.come_back)
    return True


def join(world: World, fault: Fault) -> bool:
    """Several new groups at once; `other`: how many."""
    for _ in range(int(fault.other or 1)):
        world.add_group(f"g{len(world.supervisors)}")
    return True


# --- the lighthouse --------------------------------------------------------------------------------------------------


def lighthouse(world: World, fault: Fault) -> bool:
    """The lighthouse dies; one without memory starts at the same address after a while."""
    if world.lighthouse.process is None:
        return False
    world.lighthouse.crash()
    world.after(fault.seconds, None, world.lighthouse.start)
    return True


KINDS: dict[str, Act] = {
    act.__name__: act
    for act in (
        crash, crash_rank, pause, trap_pause, trap_crash, trap_cut, slow, stall, power, cut, delay, part, part_one_way,
        glitch, late, spoil_fetch, spoil_load, leave, join, lighthouse,
    )
}  # fmt: skip
