"""Heals: a rank copies the state from the same rank of a carrier, from a frozen snapshot (R17).

It models `transfer.http.transport`. The source's group server returns the address of the state. The source's rank
serves exactly the state that the quorum names, holds readers that come early, and continues to serve those to which it
was promised. If the source fails in the middle, a mirror sends the rest. (The product uses all mirrors at once, the
model one.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.data import Copy
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.types import State
from torchft_x.errors import TransferError

if TYPE_CHECKING:
    from tests.sim.group_node import GroupNode
    from tests.sim.rank_node import RankNode
    from tests.sim.world import World


class Fetch:
    """One heal of one rank: its source, its mirrors and its progress."""

    def __init__(self, healer: RankNode, source: str, plan: QuorumPlan, *, in_place: bool) -> None:
        self.healer = healer
        self.source = source  # replica id
        self.state = plan.top  # the wanted state
        self.name = plan.snapshot  # name under which it is offered
        self.in_place = in_place  # received pieces overwrite the healer's own state
        self.asked: GroupNode | None = None  # group whose server was asked for the state's address
        self.server: RankNode | None = None  # rank that serves it, once found
        self.mirrors = [m.replica_id for m in plan.mirrors]
        self.copy: Copy | None = None  # what is under way
        self.began = False  # pieces have arrived
        self.over = False
        self.stalled_until = 0.0  # virtual time before which nothing moves


class Transfers:
    """All fetches of the world: starts them, moves their data, and ends them."""

    def __init__(self, world: World) -> None:
        self.spoiled: set[str] = set()  # groups whose next fetch breaks off half-way
        self.stalled: dict[str, float] = {}  # group -> virtual time until which its heals do not move
        self._world = world
        self._fetches: list[Fetch] = []  # fetches under way

    def offer(self, rank: RankNode, snapshot: tuple[State, Copy] | None, readers: int) -> None:
        """Set the snapshot that this rank serves, with the number of readers to which it is promised.

        None: no new one; the present one stays while promised readers are outstanding.
        """
        if snapshot is not None:
            rank.healing.snapshot, rank.healing.owed = snapshot, readers
        elif rank.healing.owed <= 0:
            rank.healing.snapshot = None
        for fetch in list(self._fetches):
            if fetch.server is rank and not fetch.began:
                self._serve(fetch)

    def fetch(self, healer: RankNode, plan: QuorumPlan, *, in_place: bool) -> None:
        """Start a heal. `on_fetched` or `on_fetch_failed` of the healer follows."""
        source, world = plan.sources[0], self._world
        fetch = Fetch(healer, source.replica_id, plan, in_place=in_place)
        self._fetches.append(fetch)
        node = world.nodes.get(source.replica_id)
        world.note(healer.process.name, "fetches {} from {}", plan.top, source.replica_id)
        if source.address.split("/")[0] in world.network.off:
            return
        if node is None or source.address not in world.listening:
            world.network.send(healer.process.site, healer.process, self.fail, fetch, "nobody listens there")
            return
        fetch.asked = node
        world.network.send(healer.process.site, node.process, self._asked, fetch, node)

    def readers_of(self, server: RankNode) -> tuple[bool, bool]:
        """Return whether data moves from this rank to a reader, and whether it has readers."""
        now, found = self._world.now, [f for f in self._fetches if f.server is server and f.began]
        return any(now >= f.stalled_until for f in found), bool(found)

    def give_up(self, healer: RankNode) -> None:
        """Fail the heal of a rank whose deadline has passed."""
        for fetch in self._fetches:
            if fetch.healer is healer:
                self.fail(fetch, "it took too long")
                return

    def died(self, rank: RankNode) -> None:
        """End the heals of a dead rank, and break those that it serves."""
        world = self._world
        for fetch in list(self._fetches):
            if fetch.healer is rank:
                self._end(fetch)
            elif rank.site_is_on and (fetch.server is rank or (fetch.asked is rank.node and rank.rank == 0)):
                healer = fetch.healer.process  # the connection of a dead process closes
                world.network.send(rank.process.site, healer, self._source_gone, fetch)

    def _source_gone(self, fetch: Fetch) -> None:
        """Continue at the healer with a mirror, which sends the rest, or fail the heal."""
        world = self._world
        for name in fetch.mirrors if fetch.began and not fetch.over else ():
            node = world.nodes.get(name)
            mirror = None if node is None else node.ranks[fetch.healer.rank]
            offered = None if mirror is None else mirror.healing.snapshot
            if (
                mirror is None
                or mirror.process.dead
                or not mirror.site_is_on
                or offered is None
                or offered[0] != fetch.name
            ):
                continue
            fetch.mirrors.remove(name)
            fetch.server, fetch.copy = mirror, offered[1]
            world.checker.figures["heals from a mirror"] += 1
            world.note(fetch.healer.process.name, "{} is gone, {} sends the rest", fetch.source, name)
            world.after(world.rng.uniform(*world.config.fetch), mirror.process, self._served, fetch)
            return
        self.fail(fetch, "the source is gone")

    def fail(self, fetch: Fetch, reason: str) -> None:
        if not fetch.over:
            self._end(fetch)
            error = TransferError(f"fetching {fetch.state} from {fetch.source}: {reason}")
            fetch.healer.healing.on_failed(error, torn=fetch.in_place and fetch.began)

    def _end(self, fetch: Fetch) -> None:
        fetch.over = True
        self._fetches.remove(fetch)

    # --- at the source -------------------------------------------------------------------------------------------

    def _asked(self, fetch: Fetch, node: GroupNode) -> None:
        """Answer at the source's group server where the state is."""
        server, fetch.asked = node.ranks[fetch.healer.rank], None
        healer = fetch.healer.process
        if node.machine.metadata(server.rank) is None:
            self._world.network.send(node.site, healer, self.fail, fetch, "the source does not say where it is")
            return
        if server.process.dead:
            self._world.network.send(node.site, healer, self.fail, fetch, "nobody listens there")
            return
        fetch.server = server
        self._world.network.send(healer.site, server.process, self._serve, fetch)

    def _serve(self, fetch: Fetch) -> None:
        """Begin to send at the source's rank, if it offers that state. Otherwise hold or refuse the reader."""
        server, world = fetch.server, self._world
        if fetch.over or fetch.began or server.healing.snapshot is None:
            return
        name, copy = server.healing.snapshot
        if name != fetch.name:
            if name > fetch.name:
                reason = f"it offers {name} by now"
                world.network.send(server.process.site, fetch.healer.process, self.fail, fetch, reason)
            return
        fetch.began, fetch.copy = True, copy
        server.healing.owed -= 1
        seconds = world.rng.uniform(*world.config.fetch)
        stalls = self.stalled.get(fetch.healer.node.group, 0.0) - world.now
        if stalls > 0.0:
            fetch.stalled_until = world.now + stalls
            seconds += stalls
            world.counts["stall_fetch"] += 1
        world.after(seconds, server.process, self._served, fetch)
        world.reach(server.node, "serve")

    def _served(self, fetch: Fetch) -> None:
        process = fetch.healer.process
        self._world.network.send(fetch.server.process.site, process, self._arrived, fetch)

    def _arrived(self, fetch: Fetch) -> None:
        if fetch.over:
            return
        group = fetch.healer.node.group
        if group in self.spoiled:
            self.spoiled.discard(group)
            self._world.counts["spoil_fetch"] += 1
            self.fail(fetch, "the connection broke half-way")
            return
        self._end(fetch)
        fetch.healer.healing.on_fetched(fetch.state, fetch.copy)
