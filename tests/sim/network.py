"""Streams and single messages between sites, with delays, cuts and one-way partitions.

A stream is two pipes. Within a pipe messages keep their order; between pipes nothing is promised. Whatever is sent
into a partition waits in the sender's kernel and goes on when the partition ends, unless somebody has given the
connection up before. Who closes, crashes or cuts decides which messages are lost and who notices first.
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

    Endpoint: TypeAlias = LighthouseNode | Uplink  # holds one side of a stream

_SOON = 0.00001  # seconds; within a process


@dataclass(frozen=True, slots=True)
class _End:
    """Last in a pipe: the stream is over."""

    reason: str


class Pipe:
    """One direction of a stream."""

    __slots__ = ("_epoch", "_last", "_queue", "closed", "dst", "process", "receiver", "src", "stalled", "stream")

    def __init__(self, stream: Stream, src: str, dst: str, process: Process, receiver: Endpoint) -> None:
        self.stream = stream
        self.src, self.dst = src, dst  # sites
        self.process, self.receiver = process, receiver  # who reads
        self.stalled = False  # something waits for the end of a partition
        self.closed = False  # nothing more is sent
        self._queue: deque[Any] = deque()  # on its way; one delivery is scheduled for each unless stalled
        self._last = 0.0  # time of the latest delivery scheduled
        self._epoch = 0  # deliveries scheduled before the last loss mean nothing

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
        """What is on its way never arrives."""
        self._queue.clear()
        self._epoch += 1
        self.stalled = False

    def resume(self) -> None:
        """The partition is over: what waited goes out."""
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
        self.session = 0  # the server's name for it
        self.ending = False  # the server has sent its last word and ignores what still comes
        self.up = Pipe(self, client_process.site, server_process.site, server_process, server)
        self.down = Pipe(self, server_process.site, client_process.site, client_process, client)
        world.network.streams[self] = None

    def over(self, pipe: Pipe, reason: str) -> None:
        """The reader of `pipe` has come to its end: it can't send any more either."""
        other = self.up if pipe is self.down else self.down
        other.closed = True
        if not other._queue:
            self.world.network.streams.pop(self, None)
        pipe.receiver.on_end(self, reason)

    def finish(self, process: Process, reason: str) -> None:
        """The side that runs in `process` ends the stream; what it has sent before arrives."""
        ours, theirs = (self.up, self.down) if process is self.down.process else (self.down, self.up)
        theirs.lose()
        theirs.closed = True
        if ours.process.dead:
            self.world.network.streams.pop(self, None)
        ours.end(reason)

    def cut(self, *, lose: bool, client_late: float, server_late: float) -> None:
        """The connection breaks; each side notices so much later. `lose`: with what is on its way."""
        for pipe, late in ((self.up, server_late), (self.down, client_late)):
            if lose:
                pipe.lose()
            pipe.end("the connection broke", late)

    def give_up(self, reason: str) -> None:
        """Both kernels have heard nothing for too long: each side notices for itself, whatever the network does."""
        world = self.world
        for pipe in (self.up, self.down):
            pipe.lose()
            if not pipe.closed:
                pipe.closed = True
            world.after(_SOON, pipe.process, pipe.receiver.on_end, self, reason)
        world.network.streams.pop(self, None)


class Network:
    """Which sites reach which, and how slowly."""

    def __init__(self, world: World) -> None:
        self.blocked: set[tuple[str, str]] = set()  # (from, to): packets vanish
        self.off: set[str] = set()  # sites without power: nothing answers, nothing is refused
        self.slow: dict[tuple[str, str], float] = {}  # (from, to) -> messages take up to so many seconds
        self.streams: dict[Stream, None] = {}  # open ones, in the order they were opened
        self._world = world
        self._held: list[tuple[str, str, Process, Call, tuple[Any, ...]]] = []  # single messages in a partition
        self._since: dict[tuple[str, str], float] = {}  # when each block began
        self._until: dict[tuple[str, str], float] = {}  # when each ended that has ended

    def latency(self, src: str, dst: str) -> float:
        world = self._world
        low, high = world.config.inside if src == dst else world.config.latency
        if self.slow:
            high = max(high, self.slow.get((src, dst), 0.0))
        return low + (high - low) * world.rng.random()

    def cannot_pass(self, a: str, b: str) -> bool:
        """Whether no connection can be made between these sites: a handshake needs both ways."""
        return bool(self.blocked) and ((a, b) in self.blocked or (b, a) in self.blocked)

    def passable_for(self, a: str, b: str) -> float:
        """For so many seconds connections could be made between these sites."""
        if self.cannot_pass(a, b):
            return 0.0
        return self._world.now - max(self._until.get((a, b), -inf), self._until.get((b, a), -inf))

    def send(self, src: str, process: Process, call: Call, *args: Any) -> None:
        """One message of its own, to whoever runs in `process`. In a partition it waits."""
        dst = process.site
        if self.blocked and (src, dst) in self.blocked:
            self._held.append((src, dst, process, call, args))
            return
        self._world.after(self.latency(src, dst), process, call, *args)

    def block(self, src: str, dst: str) -> None:
        if (src, dst) not in self.blocked:
            self.blocked.add((src, dst))
            self._since[src, dst] = self._world.now
            self._world.after(self._world.config.keepalive, None, self._keepalive, src, dst, self._world.now)

    def unblock(self, src: str, dst: str) -> None:
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
        """The site has lost its power: its connections stand until the other side finds them silent."""
        for stream in list(self.streams):
            if site in (stream.up.src, stream.up.dst):
                for pipe in (stream.up, stream.down):
                    pipe.lose()
                    pipe.closed = True
                self._world.after(self._world.config.keepalive, None, stream.give_up, "nothing was heard for too long")

    def _keepalive(self, src: str, dst: str, since: float) -> None:
        if (src, dst) not in self.blocked or self._since[src, dst] != since:
            return
        for stream in list(self.streams):
            if {stream.up.src, stream.up.dst} == {src, dst}:
                stream.give_up("nothing was heard for too long")
