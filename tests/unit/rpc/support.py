"""Helpers shared by the tests of rpc: servers that close themselves, groups that step, raw streams."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from tests import rank_calls
from tests.util import clock, scaled, wait_for
from torchft_x.core.lighthouse.status import View
from torchft_x.core.messages.group import QuorumReply
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.types import AttemptId, JoinReason, State
from torchft_x.net import parse_address
from torchft_x.rpc.codec import messages
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.rpc.group.client import GroupClient
from torchft_x.rpc.group.server import GroupServer
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.supervisor_client import SupervisorCallbacks, SupervisorClient
from torchft_x.rpc.transport import grpc_options, loop
from torchft_x.rpc.transport.token import metadata

LOCAL = "127.0.0.1:0"


@contextlib.contextmanager
def lighthouse(min_replicas: int = 1, bind: str = LOCAL, **kwargs: Any) -> Iterator[LighthouseServer]:
    # The join timeout makes the lighthouse wait for connected groups whose thread asks late.
    server = LighthouseServer(bind, min_replicas, **{"join_timeout_ms": int(clock(5000)), **kwargs})
    try:
        yield server
    finally:
        server.shutdown()


@contextlib.contextmanager
def group(name: str, lighthouse_address: str, **kwargs: Any) -> Iterator[GroupServer]:
    kwargs = {"store_address": "store:1", "world_size": 1, "bind": LOCAL, "connect_timeout": scaled(10.0), **kwargs}
    server = GroupServer(replica_id=name, lighthouse=lighthouse_address, **kwargs)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def client(address: str, **kwargs: Any) -> Iterator[GroupClient]:
    made = GroupClient(address, connect_timeout=scaled(10.0), **kwargs)
    try:
        yield made
    finally:
        made.close()


def asking(server: LighthouseServer) -> list[str]:
    """Return the replica ids that wait for a quorum."""
    return sorted(m.replica_id for m in view(server).members if m.asked is not None and not m.lost)


def known(server: LighthouseServer) -> list[str]:
    """Return the replica ids of all members that the lighthouse knows."""
    return [m.replica_id for m in view(server).members]


def is_lost(server: LighthouseServer, replica_id: str) -> bool:
    return any(m.replica_id == replica_id and m.lost for m in view(server).members)


def view(server: LighthouseServer) -> View:
    """Return what the lighthouse knows now."""

    async def read() -> View:
        return server._shell.machine.view(time.monotonic())

    return loop.call(read(), scaled(5.0))


def attempt_id(number: int = 0, token: str = "") -> AttemptId:
    return AttemptId(number, 1.0 + number, token)


class Asking(threading.Thread):
    """One quorum request on a thread. `result` returns the reply, or raises the error of the request."""

    def __init__(self, target: GroupServer | GroupClient, rank: int = 0, **kwargs: Any) -> None:
        super().__init__(daemon=True)
        self._target = target
        usual = {"state": State(), "timeout": scaled(10.0), "reason": JoinReason.NEW}
        self._kwargs = {"group_rank": rank, **usual, **kwargs}
        self._reply: QuorumReply | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._reply = rank_calls.quorum(self._target, **self._kwargs)
        except BaseException as e:
            self._error = e

    def result(self) -> QuorumReply:
        self.join(scaled(20.0))
        if self._error is not None:
            raise self._error
        assert self._reply is not None, f"no answer within {scaled(20):g} s"
        return self._reply


class Watched:
    """Recorder of a watch's callbacks."""

    def __init__(self) -> None:
        self.overs: list[tuple[int, tuple[str, ...], str]] = []
        self.ends: list[tuple[str, bool]] = []
        self.threads: set[str] = set()
        self.left = False  # `left` of the newest callback

    def on_revoked(self, quorum_id: int, lost: tuple[str, ...], reason: str, left: bool) -> None:
        self.left = left
        self.threads.add(threading.current_thread().name)
        self.overs.append((quorum_id, lost, reason))

    def on_end(self, sentence: str, fenced: bool) -> None:
        self.threads.add(threading.current_thread().name)
        self.ends.append((sentence, fenced))


def channel(address: str) -> grpc.Channel:
    return grpc_options.channel(parse_address(address))


def members(reply: QuorumReply) -> list[str]:
    return [x.replica_id for x in reply.quorum.members]


class RawSession:
    """A session in which the test writes every byte."""

    def __init__(
        self, address: str, method: str = f"/{grpc_options.SESSION}/Session", token: str | None = None
    ) -> None:
        self._channel = channel(address)
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._channel.stream_stream(method)(iter(self._out.get, None), metadata=metadata(token))

    def send(self, message: Any) -> None:
        self._out.put(message if isinstance(message, bytes) else message.SerializeToString())

    def receive(self) -> pb.Down:
        return pb.Down.FromString(next(self._call))

    def rest(self) -> list[pb.Down]:
        """Return the remaining messages until the server ends the stream."""
        return [pb.Down.FromString(data) for data in self._call]

    def close(self) -> None:
        self._out.put(None)
        self._call.cancel()
        self._channel.close()


def hello(replica_id: str = "a:1", **kwargs: Any) -> pb.Up:
    return pb.Up(hello=messages.hello_to_proto(Hello(0, replica_id, address="http://127.0.0.1:1", **kwargs)))


def welcomed(address: str, replica_id: str = "a:1") -> RawSession:
    """Return the session of a member that has received its welcome."""
    made = RawSession(address)
    made.send(hello(replica_id))
    made.receive()
    return made


def join(replica_id: str = "a:1", step: int = 0) -> pb.Up:
    member = pb.Member(replica_id=replica_id, world_size=1, state=pb.State(step=step))
    return pb.Up(join=pb.Join(member=member, reason="new"))


MEETING = "127.0.0.1:4321"


def reporting(address: str, group: str, token: str | None = None) -> SupervisorClient:
    """Return a supervisor's client that has begun to connect, without callbacks."""
    client = SupervisorClient(address, group, "host", token)
    client.start()
    return client


class Supervisor:
    """A client of one node, with the orders that it received."""

    def __init__(self, address: str, node: int, nodes: int = 2, group: str = "a") -> None:
        self.client = SupervisorClient(address, group, f"host{node}", node=node, nodes=nodes)
        self.begun: list[tuple[int, str, str]] = []
        self.overs: list[tuple[str, int, str]] = []
        self.stops: list[tuple[int, str]] = []
        self.node = node
        self.client.callbacks = SupervisorCallbacks(
            begin=lambda *order: self.begun.append(order),
            over=lambda *order: self.overs.append(order),
            stop=lambda *order: self.stops.append(order),
        )
        self.client.start()

    def ready(self, attempt: int = 0) -> None:
        self.client.ready(attempt, MEETING if self.node == 0 else "")

    def next(self, kind: str, count: int = 1) -> Any:
        """Wait for `count` orders of that kind, and return the newest."""
        wait_for(lambda: len(getattr(self, kind)) >= count, what=f"{count} {kind} at node {self.node}")
        return getattr(self, kind)[-1]

    def ended(self, code: int, reason: str = "killed") -> None:
        attempt, token, _ = self.begun[-1]
        self.client.exited(attempt, token, code, reason)


def close(*supervisors: Supervisor) -> None:
    for s in supervisors:
        s.client.close(0.1)


def where(server: LighthouseServer) -> tuple[str, int]:
    address = parse_address(server.address())
    return address.host, address.port
