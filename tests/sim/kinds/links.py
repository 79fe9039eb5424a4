"""Faults of links, collectives and heals: they break, stall, are late, or work for some members and not for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.faults import Fault, kind, node_of, site_of

if TYPE_CHECKING:
    from tests.sim.world import World


@kind
def cut(world: World, fault: Fault) -> bool:
    """Break a session.

    `other`: the side that notices first (client or server); with 'lose', messages under way are lost.
    """
    owner = world.supervisors.get(fault.target.removeprefix("s")) if fault.target.startswith("s") else None
    session = owner or node_of(world, fault.target)
    if session is None or session.uplink.stream is None:
        return False
    client_late, server_late = (0.0, fault.seconds) if "client" in fault.other else (fault.seconds, 0.0)
    session.uplink.stream.cut(lose="lose" in fault.other, client_late=client_late, server_late=server_late)
    return True


@kind
def flap(world: World, fault: Fault) -> bool:
    """Break a group's session again and again. The server notices later than the client, or after the next break."""
    return _flap(world, fault.target, world.now + fault.seconds)


def _flap(world: World, group: str, until: float) -> bool:
    node, rng = node_of(world, group), world.rng
    stream = node.uplink.stream if node is not None else None
    if stream is not None:
        late = rng.choose((0.0, 0.02, 0.2))
        stream.cut(lose=rng.chance(0.5), client_late=0.0, server_late=late)
    again = rng.uniform(0.03, 0.15)
    if world.now + again < until:
        world.after(again, None, _flap, world, group, until)
    return stream is not None


@kind
def flapping(world: World, fault: Fault) -> bool:
    """Break a group's session each `other` seconds (0.5 if that is empty). It is restored at once."""
    return _cut_again(world, fault.target, float(fault.other or 0.5), world.now + fault.seconds)


def _cut_again(world: World, group: str, pause: float, until: float) -> bool:
    there = cut(world, Fault(world.now, "cut", group, 0.0, "client"))
    if world.now + pause < until:
        world.after(pause, None, _cut_again, world, group, pause, until)
    return there


@kind
def delay(world: World, fault: Fault) -> bool:
    """Let messages between a group and the lighthouse take up to 0.3 s, each its own time."""
    site, lighthouse = site_of(world, fault.target), world.lighthouse.site
    pairs = [(site, lighthouse), (lighthouse, site)]
    world.network.slow.update(dict.fromkeys(pairs, 0.3))
    world.after(fault.seconds, None, lambda: [world.network.slow.pop(pair, None) for pair in pairs])
    return True


@kind
def part(world: World, fault: Fault) -> bool:
    """Block all messages between two sites, in both directions."""
    a, b = site_of(world, fault.target), site_of(world, fault.other)
    return _block(world, [(a, b), (b, a)], fault.seconds)


@kind
def part_one_way(world: World, fault: Fault) -> bool:
    """Block all messages from one site to another. The other direction works."""
    return _block(world, [(site_of(world, fault.target), site_of(world, fault.other))], fault.seconds)


@kind
def bad_link(world: World, fault: Fault) -> bool:
    """Block all messages between two groups, while both keep their sessions.

    `other`: the second group and, if the link flaps, seconds: it is mended and breaks again each time so many have
    passed.
    """
    other, _, pause = fault.other.partition(" ")
    return _break_again(world, fault.target, other, float(pause or fault.seconds), world.now + fault.seconds)


def _break_again(world: World, group: str, other: str, pause: float, until: float) -> bool:
    struck = part(world, Fault(world.now, "part", group, min(pause, until - world.now), other))
    if world.now + 2 * pause < until:
        world.after(2 * pause, None, _break_again, world, group, other, pause, until)
    return struck


def _block(world: World, pairs: list[tuple[str, str]], seconds: float) -> bool:
    fresh = [pair for pair in pairs if pair not in world.network.blocked]
    for pair in fresh:
        world.network.block(*pair)
        world.after(seconds, None, world.network.unblock, *pair)
    return bool(fresh)


@kind
def glitch(world: World, fault: Fault) -> bool:
    """Let the group's next reduction fail on some members though all live: a false suspicion."""
    world.fabric.glitches.add(fault.target)
    return node_of(world, fault.target) is not None


@kind
def veto(world: World, fault: Fault) -> bool:
    """Make the group's next vote no for a reason of its own (the user's, or not a number); nothing is broken."""
    world.vetoes.add(fault.target)
    return False  # the fault counts when the vote is cast


@kind
def second_thoughts(world: World, fault: Fault) -> bool:
    """Let the group's script throw away the next step that the groups decide to commit (decision 12)."""
    world.regrets[fault.target] = None
    return False  # the fault counts when the step is thrown away


@kind
def late(world: World, fault: Fault) -> bool:
    """Delay a group's results by 0.2 s."""
    world.fabric.late[fault.target] = 0.2
    world.after(fault.seconds, None, world.fabric.late.pop, fault.target, None)
    return node_of(world, fault.target) is not None


@kind
def spoil_fetch(world: World, fault: Fault) -> bool:
    """Break off the group's next heal half-way."""
    world.transfers.spoiled.add(fault.target)
    return False  # the fault counts when a heal breaks off


@kind
def stall_fetch(world: World, fault: Fault) -> bool:
    """Stop the progress of the group's heals for `seconds`."""
    world.transfers.stalled[fault.target] = world.now + fault.seconds
    return False  # the fault counts when a heal is delayed


@kind
def spoil_load(world: World, fault: Fault) -> bool:
    """Make the state of the group's next heal impossible to load: the rank is torn."""
    world.broken_loads.add(fault.target)
    return False  # the fault counts when a load fails
