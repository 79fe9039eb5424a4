"""Faults of processes, hosts and members: they die, stop, slow down, leave, come, and are replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.base import Process
from tests.sim.ending import Ending
from tests.sim.faults import Fault, kind, node_of, site_of
from tests.sim.kinds.links import part
from torchft_x.core.messages import lighthouse as m

if TYPE_CHECKING:
    from tests.sim.lighthouse_node import LighthouseNode
    from tests.sim.supervisor_node import SupervisorNode
    from tests.sim.world import World

_MOMENT = 0.003
"""Seconds between the deaths of a group and of the lighthouse, at most: the first is reported, or not."""
AROUND_RESTART = 2.0
"""Seconds within which three processes die, in `deaths_around_restart`."""
ANNOUNCED_TOO_MUCH = 0.5  # seconds that an announcement adds to the pause, which ends earlier as a rule


@kind
def crash(world: World, fault: Fault) -> bool:
    """Kill all processes of a group, or a client of the peer, with SIGKILL. The supervisor starts the group again."""
    if fault.target in world.peers:
        alive = world.peers[fault.target].alive
        world.peers[fault.target].crash()
        return alive
    node = node_of(world, fault.target)
    if node is not None:
        node.kill(-9)
    return node is not None


@kind
def crash_rank(world: World, fault: Fault) -> bool:
    """Kill one rank (`other`) with SIGKILL. torchrun ends the others a moment later."""
    node = node_of(world, fault.target)
    if node is None:
        return False
    rank = node.ranks[int(fault.other or 0) % len(node.ranks)]
    node.end_rank(rank, -9, "killed")
    return True


@kind
def crash_all(world: World, fault: Fault) -> bool:
    """Kill all processes of all groups with SIGKILL, at once or within `seconds`. Their supervisors live."""
    nodes = [node for group in world.supervisors if (node := node_of(world, group)) is not None]
    for node in nodes:
        world.after(fault.seconds * world.rng.random(), None, node.kill, -9)
    return bool(nodes)


@kind
def pause(world: World, fault: Fault) -> bool:
    """Stop a group, one of its ranks (`other`), or the lighthouse with SIGSTOP, and continue it with SIGCONT.

    With `other` "busy" the processes run, but neither receive nor send. "planned" is the same, announced to the
    lighthouse.
    """
    node = node_of(world, fault.target)
    if fault.other == "planned" and node is not None:
        node.uplink.send(m.Paused(0, fault.seconds + ANNOUNCED_TOO_MUCH, "evaluation"))
        world.after(fault.seconds, node.processes[0], node.uplink.send, m.Paused(0, 0.0, "evaluation"))
    return pause_all(world, _processes(world, fault), fault.seconds, seen=fault.other not in ("busy", "planned"))


def _processes(world: World, fault: Fault) -> list[Process]:
    house = next((x for x in world.lighthouses if x.site == fault.target), None)
    if house is not None:
        return [house.process] if house.process is not None else []
    if fault.target in world.peers:
        return [world.peers[fault.target].process]
    node = node_of(world, fault.target)
    if node is None:
        return []
    return [node.processes[int(fault.other) % len(node.processes)]] if fault.other.isdigit() else node.processes


def pause_all(world: World, processes: list[Process], seconds: float, *, seen: bool = True) -> bool:
    stopped = [p for p in processes if not p.stopped]
    for process in stopped:
        world.pause(process, seen=seen)
        world.after(seconds, None, world.resume, process)
    return bool(stopped)


@kind
def slow(world: World, fault: Fault) -> bool:
    """Make steps of a group take ten times as long."""
    world.slowness[fault.target] = 10.0, world.now + fault.seconds
    return node_of(world, fault.target) is not None


@kind
def hang(world: World, fault: Fault) -> bool:
    """Hang the training thread of a group's ranks, or of one (`other`), in its computation or between two steps.

    The process lives and its server responds. With `other` "end" the supervisor kills the group after `seconds`;
    otherwise the thread continues.
    """
    node = node_of(world, fault.target)
    if node is None:
        return False
    ranks = [node.ranks[int(fault.other) % len(node.ranks)]] if fault.other.isdigit() else node.ranks
    for rank in ranks:
        rank.hung = True
    world.after(fault.seconds, None, node.wake, fault.other == "end")
    return True


@kind
def hang_first(world: World, fault: Fault) -> bool:
    """Kill a group, and hang the training thread of its next attempt in its first step until `seconds` have passed."""
    node = node_of(world, fault.target)
    if node is None:
        return False
    world.first_steps[fault.target] = world.now + fault.seconds
    node.kill(-9)
    return True


@kind
def straggle(world: World, fault: Fault) -> bool:
    """Make steps of a group take thirty times as long."""
    world.slowness[fault.target] = 30.0, world.now + fault.seconds
    return node_of(world, fault.target) is not None


@kind
def stall(world: World, fault: Fault) -> bool:
    """Stop the clock of the group's host (a suspended virtual machine), while its processes continue."""
    clock = world.clocks.get(site_of(world, fault.target))
    if clock is None:
        return False
    clock.stall(world.now)
    site = site_of(world, fault.target)
    world.after(fault.seconds, None, lambda: world.clocks[site].go_on(world.now))
    return True


def _wanted(world: World, group: str) -> SupervisorNode | None:
    """Return the group's supervisor, if it lives and its group is to run."""
    supervisor = world.supervisors.get(group)
    return supervisor if supervisor is not None and not supervisor.process.dead and supervisor.wants else None


@kind
def power(world: World, fault: Fault) -> bool:
    """Cut the power of the group's whole host, supervisor included, and restore it later."""
    supervisor = _wanted(world, fault.target)
    if supervisor is None:
        return False
    supervisor.lose_power()
    world.after(fault.seconds, None, supervisor.restore_power)
    return True


@kind
def supervisor_dies(world: World, fault: Fault) -> bool:
    """Kill a group's supervisor and all processes of the group with SIGKILL. Its successor there reports that end."""
    supervisor = _wanted(world, fault.target)
    if supervisor is None:
        return False
    supervisor.die()
    world.after(fault.seconds, None, supervisor.restart)
    return True


@kind
def leave(world: World, fault: Fault) -> bool:
    """Let the group leave at the next boundary. If `seconds` is not 0, it comes back after that time."""
    node = node_of(world, fault.target)
    if node is None or node.leaving_at is not None or node.left:
        return False
    node.leaving_at = max(r.step.state.step for r in node.ranks) + 1
    if fault.seconds:
        world.after(fault.seconds, None, lambda: world.supervisors[fault.target].come_back())
    return True


@kind
def training_ends(world: World, fault: Fault) -> bool:
    """Let all groups leave some steps from now, and evaluate for up to `seconds`.

    `other`: the number of steps, and the probability that an evaluation ends with an error, until the faults are over:
    "5 0.3".
    """
    node, (steps, fails) = node_of(world, fault.target), fault.other.split()
    if node is None or world.ending is not None or world.peers:
        return False
    last = max(r.step.state.step for n in world.running() for r in n.ranks) + int(steps)
    world.ending = Ending(last, fault.seconds, float(fails))
    return True


@kind
def join(world: World, fault: Fault) -> bool:
    """Start several new groups at once. `other`: how many."""
    for _ in range(int(fault.other or 1)):
        world.add_group(f"g{len(world.supervisors)}")
    return True


@kind
def lighthouse(world: World, fault: Fault) -> bool:
    """Kill a lighthouse (the first, or `target`), and start another at the same address after `seconds`.

    The new one finds the journal of its predecessor, unless the host is lost, too (`other` is "host").
    """
    house = next((x for x in world.lighthouses if x.site == fault.target), world.lighthouse)
    if house.process is None:
        return False
    if fault.other == "host":
        house.lose_host()
    else:
        house.crash()
    world.after(fault.seconds, None, house.start)
    return True


def _holder(world: World) -> LighthouseNode:
    """Return the lighthouse that serves, or the first one if none does."""
    return next((x for x in world.lighthouses if x.machine is not None), world.lighthouse)


@kind
def holder_lost(world: World, fault: Fault) -> bool:
    """Lose the host of the lighthouse that serves. Another process stands by at its address after `seconds`.

    `other`: "group" if the group on that host is lost, too.
    """
    house = _holder(world)
    if fault.other:
        power(world, Fault(world.now, "power", house.beside, fault.seconds))
    return lighthouse(world, Fault(world.now, "lighthouse", house.site, fault.seconds, "host"))


@kind
def holder_stops_sending(world: World, fault: Fault) -> bool:
    """Stop the lighthouse that serves (SIGSTOP, later SIGCONT) between writing down the next quorum and sending it."""
    _holder(world).stops_sending = fault.seconds

    def nobody_has_asked() -> None:
        for house in world.lighthouses:
            house.stops_sending = 0.0

    world.after(fault.seconds, None, nobody_has_asked)
    return world.shared is not None


@kind
def shared_gone(world: World, fault: Fault) -> bool:
    """Make the directory that the lighthouses share unreachable for `seconds`."""
    if world.shared is None or world.shared.away:
        return False
    world.shared.away = True
    world.after(fault.seconds, None, world.shared.come_back)
    return True


@kind
def lighthouse_and_group(world: World, fault: Fault) -> bool:
    """Kill a group (`target`) and the lighthouse at nearly the same time, perhaps before the death is reported."""
    killed = crash(world, Fault(world.now, "crash", fault.target))
    again = Fault(world.now, "lighthouse", "", fault.seconds, fault.other)
    world.after(_MOMENT * world.rng.random(), None, lighthouse, world, again)
    return killed


@kind
def deaths_around_restart(world: World, fault: Fault) -> bool:
    """Kill a group (`target`), within a second the lighthouse, and within another second another group (`other`).

    The second group dies before or after the next lighthouse starts. All of it is over after `AROUND_RESTART` +
    `seconds`.
    """
    first, second = (world.rng.random() * AROUND_RESTART / 2 for _ in range(2))
    return deaths_around(world, fault, first, second, max(0.02, fault.seconds - AROUND_RESTART))


def deaths_around(world: World, fault: Fault, first: float, second: float, down: float) -> bool:
    """Kill a group (`target`), `first` seconds later the lighthouse, and `second` seconds later a group (`other`).

    The lighthouse starts again after `down` seconds.
    """
    killed = crash(world, Fault(world.now, "crash", fault.target))
    world.after(first, None, lighthouse, world, Fault(world.now + first, "lighthouse", "", down))
    world.after(first + second, None, crash, world, Fault(world.now + first + second, "crash", fault.other))
    return killed


@kind
def lighthouse_sending(world: World, fault: Fault) -> bool:
    """Kill the lighthouse at its next quorum, when it has sent it to some of the members. It starts again later."""
    house = world.lighthouse
    if house.process is None or house.dies_sending:
        return False
    house.dies_sending = True

    def nobody_has_asked() -> None:
        if house.dies_sending:
            house.dies_sending = False
            house.crash()

    world.after(fault.seconds, None, nobody_has_asked)
    world.after(fault.seconds + 0.02, None, house.start)
    return True


@kind
def replace(world: World, fault: Fault) -> bool:
    """Start the group on another host, as a scheduler does that takes its host for lost.

    The old attempt continues, cut off from the lighthouse for `seconds`.
    """
    supervisor = world.supervisors.get(fault.target)
    if supervisor is None or not supervisor.running or not supervisor.wants:
        return False
    for house in world.lighthouses:
        part(world, Fault(world.now, "part", fault.target, fault.seconds, house.site))
    supervisor.move()
    return True
