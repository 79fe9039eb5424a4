"""The lighthouse's service for supervisors of groups over several nodes (`core.job.multi_node`).

Everything happens on the loop's thread. Events of a group as a whole go on to the roster and the lighthouse through
`feed_group`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable

from torchft_x.core.job.multi_node import GangCoordinator
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages import job as r
from torchft_x.core.messages import nodes as n
from torchft_x.core.messages.lighthouse import CloseSession, Refuse
from torchft_x.errors import RefusedError
from torchft_x.rpc.codec import supervisors
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport.stream import Stream


class NodeService:
    """Service that turns streams into sessions of `core.job.multi_node`, and its effects into messages.

    The lighthouse's key identifies a stream."""

    def __init__(
        self, feed_group: Callable[[r.RosterEvent], None], note: Callable[[Note], None], confirm: Callable[[], None]
    ) -> None:
        self._feed_group = feed_group  # takes events of a whole group
        self._note = note  # logs a note
        self._confirm = confirm  # raises if another lighthouse may serve
        self._machine = GangCoordinator(make_token=lambda: secrets.token_hex(8))
        self._streams: dict[int, tuple[Stream, str, int]] = {}  # streams after their hello: stream, group, node

    def __contains__(self, key: int) -> bool:
        return key in self._streams

    def tick(self) -> None:
        self._carry_out(self._machine.handle(Tick(), time.monotonic()))

    def retain(self, groups: Collection[str]) -> None:
        self._machine.retain(groups)

    def greet(self, stream: Stream, here: r.SupervisorHere) -> None:
        """Take the hello of a node's supervisor that was welcomed. Raises `RefusedError` if the machine refuses it."""
        effects = self._machine.handle(here, time.monotonic())
        for effect in effects:
            if isinstance(effect, Refuse):
                raise RefusedError(effect.sentence)
        self._streams[here.stream] = (stream, here.group, here.node)
        self._carry_out(effects)

    def receive(self, key: int, up: pb.SupervisorUp) -> None:
        """Take a message after the hello. Raises `RefusedError`."""
        if up.WhichOneof("kind") == "ping":
            return
        event = supervisors.node_event(key, up)
        self._carry_out(self._machine.handle(event, time.monotonic()))
        if isinstance(event, n.NodeDone):
            _, group, node = self._streams[key]
            self._feed_group(r.SupervisorFinished(group, event.code, event.sentence, node))

    def gone(self, key: int) -> int:
        """Forget a stream that has ended, and return its node; 0 for a stream of another service."""
        if key not in self._streams:
            return 0
        _, _, node = self._streams.pop(key)
        self._carry_out(self._machine.handle(n.NodeGone(key), time.monotonic()))
        return node

    def _carry_out(self, effects: Iterable[n.NodeEffect]) -> None:
        for effect in effects:
            if isinstance(effect, (r.AttemptStarted, r.AttemptExited)):
                self._feed_group(effect)
            elif isinstance(effect, Note):
                self._note(effect)
            elif effect.session in self._streams:
                self._tell(self._streams[effect.session][0], effect)

    def _tell(self, stream: Stream, effect: n.NodeEffect) -> None:
        if isinstance(effect, (n.SendBegin, n.SendAttemptOver, n.SendStop)):
            if isinstance(effect, n.SendBegin):
                self._confirm()  # two lighthouses must not start two attempts of one group
            stream.send(supervisors.NODE_DOWN.encode(effect).SerializeToString())
        elif isinstance(effect, CloseSession):
            stream.finish()
