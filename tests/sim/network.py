"""Streams and single messages between sites, with delays, cuts and one-way partitions.

A stream is two pipes. Within a pipe messages keep their order; between pipes there is no order. A message sent into a
partition waits in the sender's kernel and is sent when the partition ends, unless one side has given the connection up
before. The side that closes, crashes or cuts decides which messages are lost and which side notices first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.sim.base import Call, Process

if TYPE_CHECKING:
    from tests.sim.lighthouse_node import LighthouseNode
    from tests.sim.uplink import Uplink
    from tests.sim.world import World

    Endpoint: TypeAlias = LighthouseNode | Uplink  # owner of one side of a stream

_SOON = 0.00001  # seconds until the own process notices


@dataclass(frozen=True, slots=True)
class _End:
    """Last message in a pipe: the stream is over."""

    reason: str


class Pipe:
    """One direction of a stream. Owns the messages under way and their order."""

    __slots__ = ("_epoch", "_last", "_queue", "closed", "dst", "process", "receiver", "src", "stalled", "stream")

    def __init__(self, stream: Stream, src: str, dst: str, process: Process, receiver: Endpoint) -> None:
        self.stream = stream
        self.src, self.dst = src, dst  # sites
        self.process, self.receiver = process, receiver  # reading process, and its owner
        self.stalled = False  # messages wait for the end of a partition
        self.closed = False  # the sender's end is shut
        self._queue: deque[Any] = deque()  # messages under way; one delivery is scheduled for each unless stalled
        self._last = 0.0  # virtual time of the latest scheduled delivery
        self._epoch = 0  # number of losses; deliveries scheduled before the last one are void

    def send(self, message: Any, delay: float = 0.0) -> None:
        if self.closed:
            return
        self._queue.append(message)
        world = self.stream.world
        if self.stalled or (world.network.blocked and (self.src, self.dst) in world.network.blocked):
            self.stalled = True
            return
        self._schedule(world, delay)

    def end(self, reason: str, delay: float = 0.0) -> None:
        self.send(_End(reason), delay)
        self.closed = True

    def lose(self) -> None:
        """Drop the messages under way."""
        self._queue.clear()
        self._epoch += 1
        self.stalled = False

    def resume(self) -> None:
        """Send the waiting messages after the end of a partition."""
        if self.stalled:
            self.stalled = False
            for _ in self._queue:
                self._schedule(self.stream.world, 0.0)

    def _schedule(self, world: World, delay: float) -> None:
        at = world.now + world.network.latency(self.src, self.dst) + delay
        if at < self._last:
            at = self._last
        self._last = at
        world.at(at, self.process, self._deliver, self._epoch)

    def _deliver(self, epoch: int) -> None:
        if epoch != self._epoch or not self._queue:
            return
        message = self._queue.popleft()
        if type(message) is _End:
            self.stream.over(self, message.reason)
        else:
            self.receiver.on_message(self.stream, message)


class Stream:
    """A connection that carries messages both ways, opened by `client`."""

    __slots__ = ("down", "ending", "session", "up", "world")

    def __init__(
        self, world: World, client: Endpoint, client_process: Process, server: Endpoint, server_process: Process
    ) -> None:
        self.world = world
        self.session = 0  # the server's number for it; 0 before the hello
        self.ending = False  # the server has sent its last message and ignores further input
        self.up = Pipe(self, client_process.site, server_process.site, server_process, server)
        self.down = Pipe(self, server_process.site, client_process.site, client_process, client)
        world.network.streams[self] = None

    def over(self, pipe: Pipe, reason: str) -> None:
        """Close the reverse direction and notify the reader of `pipe`, which has reached the end."""
        other = self.up if pipe is self.down else self.down
        other.closed = True
        if not other._queue:
            self.world.network.streams.pop(self, None)
        pipe.receiver.on_end(self, reason)

    def finish(self, process: Process, reason: str) -> None:
        """End the stream from the side that runs in `process`. Messages sent before arrive."""
        ours, theirs = (self.up, self.down) if process is self.down.process else (self.down, self.up)
        theirs.lose()
        theirs.closed = True
        if ours.process.dead:
            self.world.network.streams.pop(self, None)
        ours.end(reason)

    def cut(self, *, lose: bool, client_late: float, server_late: float) -> None:
        """Break the connection; each side notices after its own delay, seconds. `lose`: drop the messages under way."""
        for pipe, late in ((self.up, server_late), (self.down, client_late)):
            if lose:
                pipe.lose()
            pipe.end("the connection broke", late)

    def give_up(self, reason: str) -> None:
        """End the stream after the keepalive time without a packet: each side notices by itself, in any network."""
        world = self.world
        for pipe in (self.up, self.down):
            pipe.lose()
            if not pipe.closed:
                pipe.closed = True
            world.after(_SOON, pipe.process, pipe.receiver.on_end, self, reason)
        world.network.streams.pop(self, None)


class Network:
    """Links between sites: their partitions and latencies, and the open streams."""

    def __init__(self, world: World) -> None:
        self.blocked: set[tuple[str, str]] = set()  # (from, to): packets are dropped
        self.off: set[str] = set()  # sites without power, which neither answer nor refuse
        self.slow: dict[tuple[str, str], float] = {}  # (from, to) -> longest latency in seconds
        self.streams: dict[Stream, None] = {}  # open streams, in the order in which they were opened
        self._world = world
        self._held: list[tuple[str, str, Process, Call, tuple[Any, ...]]] = []  # single messages in a partition
        self._since: dict[tuple[str, str], float] = {}  # virtual time at which each present block began
        self._until: dict[tuple[str, str], float] = {}  # virtual time at which the last block ended

    def latency(self, src: str, dst: str) -> float:
        """Draw the seconds that a message between these sites takes."""
        world = self._world
        low, high = world.config.inside if src == dst else world.config.latency
        if self.slow:
            high = max(high, self.slow.get((src, dst), 0.0))
        return low + (high - low) * world.rng.random()

    def cannot_pass(self, a: str, b: str) -> bool:
        """Return whether no connection can be made between these sites, as a handshake needs both directions."""
        return bool(self.blocked) and ((a, b) in self.blocked or (b, a) in self.blocked)

    def passable_for(self, a: str, b: str) -> float:
        """Return the seconds for which connections between these sites have been possible."""
        if self.cannot_pass(a, b):
            return 0.0
        return self._world.now - max(self._until.get((a, b), -inf), self._until.get((b, a), -inf))

    def send(self, src: str, process: Process, call: Call, *args: Any) -> None:
        """Send one message outside a stream to the owner of `process`. In a partition it waits."""
        dst = process.site
        if self.blocked and (src, dst) in self.blocked:
            self._held.append((src, dst, process, call, args))
            return
        self._world.after(self.latency(src, dst), process, call, *args)

    def block(self, src: str, dst: str) -> None:
        """Drop packets from one site to another. Connections between them break after the keepalive time."""
        if (src, dst) not in self.blocked:
            self.blocked.add((src, dst))
            self._since[src, dst] = self._world.now
            self._world.after(self._world.config.keepalive, None, self._keepalive, src, dst, self._world.now)

    def unblock(self, src: str, dst: str) -> None:
        """End a block, and send the messages that it held up."""
        if (src, dst) in self.blocked:
            self.blocked.discard((src, dst))
            self._until[src, dst] = self._world.now
        for stream in list(self.streams):
            for pipe in (stream.up, stream.down):
                if (pipe.src, pipe.dst) == (src, dst):
                    pipe.resume()
        held, self._held = self._held, []
        for message in held:
            if message[:2] == (src, dst):
                self.send(message[0], *message[2:4], *message[4])
            else:
                self._held.append(message)
        self._world.fabric.retry()

    def vanish(self, site: str) -> None:
        """Cut the site's power: its connections stand until the other side's keepalive ends them."""
        for stream in list(self.streams):
            if site in (stream.up.src, stream.up.dst):
                for pipe in (stream.up, stream.down):
                    pipe.lose()
                    pipe.closed = True
                self._world.after(self._world.config.keepalive, None, stream.give_up, "nothing was heard for too long")

    def _keepalive(self, src: str, dst: str, since: float) -> None:
        """End the connections between two sites if the block has lasted for the whole keepalive time."""
        if (src, dst) not in self.blocked or self._since[src, dst] != since:
            return
        for stream in list(self.streams):
            if {stream.up.src, stream.up.dst} == {src, dst}:
                stream.give_up("nothing was heard for too long")
