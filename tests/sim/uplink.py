"""The client's side of a stream to the lighthouse: hello, welcome, pings and reconnects.

It models `rpc.transport.session`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.sim.base import Process
from tests.sim.network import Stream
from torchft_x.core.group import reconnect
from torchft_x.core.messages.lighthouse import Fence, Refuse
from torchft_x.rpc.transport.session import Keepalive
from torchft_x.timing import TIMING

if TYPE_CHECKING:
    from tests.sim.group_node import GroupNode
    from tests.sim.lighthouse_node import LighthouseNode
    from tests.sim.supervisor_node import SupervisorNode
    from tests.sim.world import World

EAGER_PINGS = 2  # unanswered pings; about the duration of the product's EAGER_LOOKS


@dataclass(frozen=True, slots=True)
class Welcome:
    rhythm: Keepalive
    others_train: bool = False


@dataclass(frozen=True, slots=True)
class Ping:
    """Ping or its echo, in either direction."""


class Uplink:
    """Client of one lighthouse at a time: owns the stream, its keepalive, and the choice of the next lighthouse."""

    def __init__(self, world: World, process: Process, owner: GroupNode | SupervisorNode) -> None:
        self.world = world
        self.process = process  # process that owns the connection
        self.stream: Stream | None = None  # open stream, from the handshake on
        self.standing = False  # the lighthouse's welcome has come
        self.others_train = False  # the newest welcome's field
        self._owner = owner
        # When the unanswered pings of this session were sent, by the process's clock.
        self._pinged: deque[float] = deque()
        self._at = 0  # index of the lighthouse that is connected or is tried next
        self._pause = TIMING.reconnect_first  # seconds before the next connect
        self._away_since = world.now  # virtual time since which there is no session
        self._closing = False
        self._tries = 0  # number of the present connect; timers of older ones are void
        self._sent = 0  # number of messages since the last beat
        self._silent = 0  # number of pings since the last message from the other side

    def send(self, message: Any) -> None:
        if self.standing and self.stream is not None:
            self._sent += 1
            self.stream.up.send(message)

    def close(self) -> None:
        """End the stream after the messages sent have arrived. No new session follows."""
        self._closing = True
        self._tries += 1
        if self.stream is not None:
            self.stream.finish(self.process, "the client has closed it")
            self.stream = None
        self.standing = False

    @property
    def lighthouse(self) -> LighthouseNode:
        return self.world.lighthouses[self._at]

    # --- connecting ----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect to the lighthouse whose turn it is."""
        if self._closing:
            return
        self._tries += 1
        network, lighthouse = self.world.network, self.lighthouse
        site, there = self.process.site, lighthouse.site
        self.world.after(self.world.config.welcome_timeout, self.process, self._too_late, self._tries)
        if network.cannot_pass(site, there):
            return
        there_and_back = network.latency(site, there) + network.latency(there, site)
        self.world.after(there_and_back, self.process, self._answered, self._tries)

    def _answered(self, tries: int) -> None:
        if tries != self._tries:
            return
        process = self.lighthouse.process
        if process is None or self.lighthouse.machine is None:
            self._end("connection refused" if process is None else "it stands by")
            return
        self.stream = Stream(self.world, self, self.process, self.lighthouse, process)
        self.stream.up.send(self._owner.hello())

    def _too_late(self, tries: int) -> None:
        if tries == self._tries and not self.standing:
            if self.stream is not None:
                self.stream.finish(self.process, "the client gave up waiting for the welcome")
            self._end("it did not answer our hello")

    def _end(self, reason: str) -> None:
        """End the present connect or session. The next connect comes after a pause."""
        stood, self.standing, self.stream = self.standing, False, None
        self._tries += 1
        if stood:
            self._away_since = self.world.now
            if not self._closing:
                self._owner.on_down(reason)
        else:
            self._at = (self._at + 1) % len(self.world.lighthouses)
        self._pause = reconnect.pause(None if stood else self._pause, self.world.now - self._away_since)
        if not self._closing:
            self.world.after(self._pause * self.world.rng.uniform(0.5, 1.0), self.process, self.connect)

    # --- a session -----------------------------------------------------------------------------------------------

    def on_message(self, stream: Stream, message: Any) -> None:
        if stream is not self.stream:
            return
        self._silent = 0
        if isinstance(message, (Fence, Refuse)):
            stream.finish(self.process, "refused")
            self._closing = True
            self.stream, self.standing = None, False
            self._owner.on_word(message)
        elif not self.standing:
            assert isinstance(message, Welcome), message
            self.standing = True
            self.others_train = message.others_train
            self._sent = 0
            self._pinged.clear()
            self.world.after(message.rhythm.ping, self.process, self._beat, stream, message.rhythm)
            self._owner.on_up()
        elif not isinstance(message, Ping):
            self._owner.on_word(message)
        elif self._pinged:
            self._owner.on_pong(self._pinged.popleft())

    def on_end(self, stream: Stream, reason: str) -> None:
        if stream is self.stream:
            self._end(reason)

    def _beat(self, stream: Stream, rhythm: Keepalive) -> None:
        """Ping after each period without a message, and end the session after too many unanswered pings."""
        if stream is not self.stream:
            return
        if self._silent >= rhythm.pings or (self._silent >= EAGER_PINGS and self._owner.eager()):
            stream.finish(self.process, "the lighthouse was silent for too long")
            self._end("it was silent for too long")
            return
        if self._sent == 0:
            stream.up.send(Ping())
            self._pinged.append(self.process.clock.read(self.world.now))
            self._silent += 1
        self._sent = 0
        self.world.after(rhythm.ping, self.process, self._beat, stream, rhythm)
