"""Process groups between replica groups: members meet, reduce, and see each other's ends close.

One `Mesh` is one generation of one group rank's process group. The properties that make gloo's failures hard are
modelled:
* The same reduction succeeds on some members and fails on others, and some learn of it late.
* A partition makes everybody wait until their own deadlines.
* A member that makes a generation anew alone waits for the others in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from torchft_x.core.heal import QuorumPlan
from torchft_x.core.types import Part, group_of
from torchft_x.errors import CollectiveError, UnreachableError

if TYPE_CHECKING:
    from tests.sim.peer_node import PeerNode
    from tests.sim.rank_node import RankNode
    from tests.sim.world import World

    Member: TypeAlias = RankNode | PeerNode

Contribution = tuple[str, int, int, Part]
"""(replica id, step, parameters it was computed from, part it was computed for)."""

CONNECT = (0.0005, 0.003)  # seconds until one member is connected, once all have met
REDUCE = (0.0002, 0.003)  # seconds until one member has the result, once all have entered
_LOST_DATA = 0.5  # probability that a partition that begins during a reduction keeps a member from its result


class Mesh:
    """One generation of a process group: its members, and the reductions in which they take part."""

    def __init__(self, key: tuple[int, int], names: tuple[str, ...], store: str) -> None:
        self.key = key  # (config id, group rank)
        self.names = names  # replica ids of the expected members
        self.store = store  # address of the store where they meet: site/...
        self.came: dict[str, Member] = {}  # members that have come, by replica id
        self.closed: set[str] = set()  # replica ids of members that have shut their end
        self.lost: dict[str, str] = {}  # replica id of a member that has noticed -> replica id whose end is shut
        self.ops: list[dict[str, Contribution | None]] = []  # contributions by replica id, for each reduction in turn
        self.entered: dict[str, int] = {}  # replica id -> number of reductions that it has entered


class Fabric:
    """Owner of all meshes of the world: brings members together, carries out reductions, reports closed ends."""

    def __init__(self, world: World) -> None:
        self.glitches: set[str] = set()  # groups whose next reduction fails on some members without a cause
        self.late: dict[str, float] = {}  # group -> seconds by which its results are late
        self._world = world
        self._meetings: dict[tuple[int, int], list[Mesh]] = {}  # key -> generations made under it, in order
        self._stuck: list[tuple[Any, tuple[Any, ...]]] = []  # calls held up by a partition, tried again when one ends

    def retry(self) -> None:
        """Try the calls again that a partition has held up."""
        stuck, self._stuck = self._stuck, []
        for call, args in stuck:
            call(*args)

    # --- meeting -------------------------------------------------------------------------------------------------

    def join(self, member: Member, plan: QuorumPlan, group_rank: int) -> Mesh:
        """Let a member come to its mesh. `on_configured` follows, unless the member gives up before."""
        meetings = self._meetings.setdefault((plan.config_id, group_rank), [])
        mesh = next((x for x in meetings if member.who not in x.came and member.who not in x.closed), None)
        if mesh is None:
            mesh = Mesh((plan.config_id, group_rank), plan.replica_ids, plan.store_address)
            meetings.append(mesh)
        world = self._world
        world.after(world.network.latency(member.process.site, member.process.site), member.process, self._arrive,
                    member, mesh)  # fmt: skip
        return mesh

    def missing(self, mesh: Mesh) -> list[str]:
        return [name for name in mesh.names if name not in mesh.came]

    def _arrive(self, member: Member, mesh: Mesh) -> None:
        if member.mesh is not mesh or member.who in mesh.closed:
            return
        world = self._world
        there = mesh.store.split("/")[0]
        if there in world.network.off or world.network.cannot_pass(member.process.site, there):
            self._stuck.append((self._arrive, (member, mesh)))
            return
        if mesh.store.rsplit("/", 1)[0] not in world.listening:
            member.on_configured(mesh, UnreachableError(f"nobody listens at the store {mesh.store}."))
            return
        mesh.came[member.who] = member
        if len(mesh.came) == len(mesh.names):
            for each in mesh.came.values():
                world.after(world.rng.uniform(*CONNECT), each.process, self._connected, each, mesh)

    def _connected(self, member: Member, mesh: Mesh) -> None:
        if member.who in mesh.closed:
            return
        if self.cut_off(member, mesh):
            self._stuck.append((self._connected, (member, mesh)))
            return
        who = mesh.lost.get(member.who)
        member.on_configured(mesh, None if who is None else _broken(who))

    def cut_off(self, member: Member, mesh: Mesh) -> list[str]:
        """Return the replica ids of the members that came and whose hosts this member can't connect with."""
        network, site = self._world.network, member.process.site
        return [who for who, other in mesh.came.items() if network.cannot_pass(site, other.process.site)]

    def _parted(self, mesh: Mesh) -> bool:
        network = self._world.network
        if not network.blocked:
            return False
        sites = {m.process.site for m in mesh.came.values()}
        return any(a in sites and b in sites for a, b in network.blocked)

    # --- reducing ------------------------------------------------------------------------------------------------

    def reduce(self, member: Member, mesh: Mesh, contribution: Contribution | None) -> None:
        """Let a member enter its next reduction.

        `on_reduced` or `on_mesh_error` of the member follows, unless it gives up before.
        """
        who, world = member.who, self._world
        index = mesh.entered.get(who, 0)
        mesh.entered[who] = index + 1
        if index == len(mesh.ops):
            mesh.ops.append({})
        op = mesh.ops[index]
        op[who] = contribution
        if who in mesh.lost or who in mesh.closed:
            error = _broken(mesh.lost.get(who, who))
            world.after(world.config.inside[0], member.process, member.on_mesh_error, mesh, error)
        elif len(op) == len(mesh.names):
            self._finish(mesh, index)

    def _finish(self, mesh: Mesh, index: int) -> None:
        """Schedule the result for each member after all have entered: each gets it after its own delay, or never."""
        world, op = self._world, mesh.ops[index]
        result = tuple(sorted(c for c in op.values() if c is not None))
        mesh.ops[index] = {}
        groups = {group_of(name) for name in mesh.names} if self.glitches else set()
        glitch = bool(groups & self.glitches)
        self.glitches -= groups
        alone = len(mesh.names) == 1
        for member in mesh.came.values():
            fails = glitch and not alone and world.rng.chance(0.5)
            delay = 0.0 if alone else world.rng.uniform(*REDUCE) + self.late.get(group_of(member.who), 0.0)
            world.after(delay, member.process, self._result, member, mesh, result, fails)

    def _result(self, member: Member, mesh: Mesh, result: tuple[Contribution, ...], fails: bool) -> None:
        who = member.who
        if who in mesh.closed or who in mesh.lost:
            return  # `on_mesh_error` was called before
        if self._parted(mesh) and self._world.rng.chance(_LOST_DATA):
            self._stuck.append((self._result, (member, mesh, result, fails)))
            return
        if fails:
            member.on_mesh_error(mesh, CollectiveError("the reduction failed on this side"))
        else:
            member.on_reduced(mesh, result)

    # --- ends ----------------------------------------------------------------------------------------------------

    def close(self, member: Member, mesh: Mesh) -> None:
        """Shut this member's end. The others notice after the latency of their links, or when a partition ends."""
        who = member.who
        if who in mesh.closed:
            return
        mesh.closed.add(who)
        if member.process.site not in self._world.network.off:
            for other in mesh.came.values():
                if other.who not in mesh.closed:
                    self._notify(mesh, member.process.site, who, other)
        if len(mesh.closed) == len(mesh.names):
            self._forget(mesh)

    def died(self, member: Member) -> None:
        if member.mesh is not None:
            self.close(member, member.mesh)

    def _notify(self, mesh: Mesh, site: str, who: str, other: Member) -> None:
        world = self._world
        if (site, other.process.site) in world.network.blocked:
            self._stuck.append((self._notify, (mesh, site, who, other)))
            return
        world.after(world.network.latency(site, other.process.site), other.process, self._notice, mesh, who, other)

    def _notice(self, mesh: Mesh, who: str, other: Member) -> None:
        if other.who not in mesh.closed and other.who not in mesh.lost:
            mesh.lost[other.who] = who
            other.on_mesh_error(mesh, _broken(who))

    def _forget(self, mesh: Mesh) -> None:
        meetings = self._meetings.get(mesh.key, [])
        if mesh in meetings and not self.missing(mesh):
            meetings.remove(mesh)
            if not meetings:
                del self._meetings[mesh.key]


def _broken(who: str) -> CollectiveError:
    return CollectiveError(f"the connection to {who} broke.", (who,))
