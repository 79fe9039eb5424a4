"""What strangers without a token do, and members with one that lie."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.unit.attacks.http2 import PREFACE, Connection
from torchft_x.net import parse_address

from torchft_x.rpc.transport import grpc_options  # isort: skip
import grpc  # isort: skip
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport.token import metadata

HEARTBEAT = f"/{grpc_options.LIGHTHOUSE}/Heartbeat"
MANAGER_QUORUM = f"/{grpc_options.MANAGER}/Quorum"


@dataclass
class Aim:
    """Where the attacked are."""

    lighthouse: tuple[str, int]
    trainer: tuple[str, int]  # the group server of group 0
    checkpoint: tuple[str, int]  # and its checkpoint server
    token: str | None
    over: threading.Event = field(default_factory=threading.Event)  # the attack shall end
    did: dict[str, Any] = field(default_factory=dict)  # what came of it, for the table

    @staticmethod
    def find(lighthouse: str, token: str | None) -> Aim:
        with _channel(lighthouse) as c:
            reply = c.unary_unary(f"/{grpc_options.STATUS}/Status")(b"", timeout=10.0, metadata=metadata(token))
        members = json.loads(pb.StatusReply.FromString(reply).json)["members"]
        address = next(m["address"] for m in members if m["replica_id"].startswith("0:") or "_0:" in m["replica_id"])
        with _channel(address) as c:
            request = peer_pb.CheckpointMetadataRequest(rank=0).SerializeToString()
            path = f"/{grpc_options.MANAGER}/CheckpointMetadata"
            reply = c.unary_unary(path)(request, timeout=10.0, metadata=metadata(token))
        where = peer_pb.CheckpointMetadataResponse.FromString(reply).checkpoint_metadata
        return Aim(_pair(lighthouse), _pair(address), _pair(where.removesuffix("/checkpoint/")), token)


def _pair(url: str) -> tuple[str, int]:
    address = parse_address(url)
    return address.host, address.port


def _target(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _channel(url: str) -> grpc.Channel:
    return grpc.insecure_channel(parse_address(url).target)


# --- strangers -----------------------------------------------------------------------------------------------------------


def billion_steps(aim: Aim) -> None:
    """S2: one unary Quorum of a client that claims step 10^9, again and again."""
    with grpc.insecure_channel(_target(aim.lighthouse)) as c:
        call = c.unary_unary(f"/{grpc_options.LIGHTHOUSE}/Quorum")
        member = peer_pb.QuorumMember(replica_id="stranger", address="http://127.0.0.1:1", step=10**9, world_size=1)
        request = peer_pb.LighthouseQuorumRequest(requester=member).SerializeToString()
        while not aim.over.wait(0.2):
            try:
                call(request, timeout=30.0, metadata=metadata(aim.token))
                aim.did["answered"] = aim.did.get("answered", 0) + 1
            except grpc.RpcError as e:
                aim.did["said"] = str(e.details())[:160]


def unfinished_at_lighthouse(aim: Aim) -> None:
    _unfinished(aim, aim.lighthouse, HEARTBEAT)


def unfinished_at_trainer(aim: Aim) -> None:
    _unfinished(aim, aim.trainer, MANAGER_QUORUM)


def _unfinished(aim: Aim, address: tuple[str, int], path: str, calls: int = 64, size: int = 15 << 20) -> None:
    """S3: unary messages that are begun and never finished, each on a connection of its own."""
    connections, taken = [], 0
    for _ in range(calls):
        with suppress(OSError):
            connection = Connection(address)
            connections.append(connection)
            taken += connection.feed(connection.call(path), size, begin=True, seconds=0.3)
        if aim.over.is_set():
            break
    aim.did["taken_mb"] = round(taken / 1e6)
    while not aim.over.wait(0.2):
        for c in connections:
            c.read(0.001)
    for c in connections:
        c.close()


def empty_streams(aim: Aim, streams: int = 20_000, each: int = 400) -> None:
    """S3: calls without a message, of the unary and of the session's kind."""
    connections: list[Connection] = []
    for n in range(streams // each):
        with suppress(OSError):
            connection = Connection(aim.lighthouse)
            connections.append(connection)
            for i in range(each):
                connection.call(HEARTBEAT if i % 2 else f"/{grpc_options.SESSION}/Session")
            connection.read(0.01)
        if aim.over.is_set():
            break
        aim.did["streams"] = (n + 1) * each
    while not aim.over.wait(0.2):
        for c in connections:
            c.read(0.001)
    aim.did["ended"] = sum(len(c.ended) for c in connections)
    for c in connections:
        c.close()


def idle_at_lighthouse(aim: Aim) -> None:
    _crowd(aim, aim.lighthouse, b"")


def idle_at_trainer(aim: Aim) -> None:
    _crowd(aim, aim.trainer, b"")


def greeted_at_trainer(aim: Aim) -> None:
    _crowd(aim, aim.trainer, PREFACE + b"\0\0\0\4\0\0\0\0\0")


def greeted_at_lighthouse(aim: Aim) -> None:
    _crowd(aim, aim.lighthouse, PREFACE + b"\0\0\0\4\0\0\0\0\0")


def _crowd(aim: Aim, address: tuple[str, int], says: bytes, count: int = 1500) -> None:
    """S5: that many connections that say nothing, or hello in HTTP/2; those that are closed are opened again."""
    open_: dict[int, socket.socket] = {}
    opened, refused = 0, 0
    while not aim.over.is_set():
        for i in range(count):
            if i in open_ and _is_closed(open_[i]):
                open_.pop(i).close()
            if i not in open_ and not aim.over.is_set():
                try:
                    s = socket.create_connection(address, timeout=1.0)
                    s.sendall(says)
                    s.setblocking(False)
                    open_[i], opened = s, opened + 1
                except OSError:
                    refused += 1
        aim.did.update(opened=opened, refused=refused, open=len(open_))
        aim.over.wait(0.2)
    for s in open_.values():
        s.close()


def _is_closed(s: socket.socket) -> bool:
    try:
        while True:
            if not s.recv(4096):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def checkpoint_headers(aim: Aim, connections: int = 80) -> None:
    """S11: requests with endless headers to a checkpoint server."""
    made: list[socket.socket] = []
    line = b"X-Long: " + b"x" * 60_000 + b"\r\n"
    sent = 0
    for i in range(connections):
        with suppress(OSError):
            s = socket.create_connection(aim.checkpoint, timeout=0.3)
            made.append(s)
            s.sendall(b"GET /checkpoint/1/1 HTTP/1.1\r\n")
            for n in range(95):
                s.sendall(line.replace(b"Long", b"L%d" % n))
                sent += len(line)
        if aim.over.is_set():
            break
        aim.did["connections"] = i + 1
    aim.did["sent_mb"] = round(sent / 1e6)
    aim.over.wait()
    for s in made:
        s.close()


# --- members that lie ----------------------------------------------------------------------------------------------------


class Liar:
    """A session that says anything."""

    def __init__(self, aim: Aim) -> None:
        self._channel = grpc.insecure_channel(_target(aim.lighthouse), options=[("grpc.use_local_subchannel_pool", 1)])
        self._out: list[bytes] = []
        self._more = threading.Semaphore(0)
        self._closed = False
        self.said: list[pb.Down] = []
        method = self._channel.stream_stream(f"/{grpc_options.SESSION}/Session")
        self._call = method(iter(self._next, None), metadata=metadata(aim.token))
        threading.Thread(target=self._read, daemon=True).start()

    def _next(self) -> bytes | None:
        self._more.acquire()
        return self._out.pop(0) if self._out else None

    def _read(self) -> None:
        with suppress(grpc.RpcError, ValueError):
            for data in self._call:
                self.said.append(pb.Down.FromString(data))
        self._closed = True

    @property
    def ended(self) -> bool:
        return self._closed

    def send(self, up: pb.Up) -> None:
        self._out.append(up.SerializeToString())
        self._more.release()

    def close(self) -> None:
        self._more.release()
        self._call.cancel()
        self._channel.close()


def _hello(replica_id: str, **fields: Any) -> pb.Up:
    return pb.Up(
        hello=pb.Hello(replica_id=replica_id, wire=grpc_options.WIRE, library="torchft_x/0", runs_on=True, **fields)
    )


def huge_id(aim: Aim) -> None:
    """S6: an id near 2^62, then a join, so that a quorum is formed above it."""
    liar = Liar(aim)
    liar.send(_hello("liar:1", state=pb.State(committed_in=2**62 - 1)))
    member = pb.Member(replica_id="liar:1", world_size=1, library="torchft_x/0")
    liar.send(pb.Up(join=pb.Join(member=member, reason="new", number=1)))
    time.sleep(2.0)
    liar.close()
    _note(aim, liar)


def _note(aim: Aim, liar: Liar) -> None:
    aim.did["said"] = [str(d.refused.sentence or d.WhichOneof("kind"))[:120] for d in liar.said][:5]


def huge_hello(aim: Aim) -> None:
    """S8: hellos of 8 MB, one after the other."""
    quorum = pb.Quorum(id=5, members=[pb.Member(replica_id=str(i), handles=[""] * 1000) for i in range(4096)])
    while not aim.over.is_set():
        liar = Liar(aim)
        liar.send(_hello("liar:1", quorum=quorum))
        deadline = time.monotonic() + 5.0
        while not liar.ended and time.monotonic() < deadline and not aim.over.wait(0.05):
            pass
        _note(aim, liar)
        liar.close()


def lies(aim: Aim) -> None:
    """Random words of a member: states, quorums, grants, suspects, pauses, results."""
    rng = random.Random(1)
    while not aim.over.is_set():
        liar = Liar(aim)
        name = f"liar:{rng.randrange(10)}"

        def state() -> pb.State:
            return pb.State(step=rng.choice([0, 5, 1000, 10**9]), committed_in=rng.choice([0, 7, 2**50]))

        liar.send(_hello(name, state=state(), granted_through=rng.choice([0, 10**9])))
        for n in range(rng.randrange(4)):
            prepared = pb.Prepared(quorum=2**50, step=10**9 + 1, digest=1) if rng.random() < 0.3 else None
            member = pb.Member(
                replica_id=name, world_size=1, library="torchft_x/0", state=state(), prepared=prepared,
                address="http://127.0.0.1:1", store_address="127.0.0.1:1/x", torn=rng.random() < 0.2,
            )  # fmt: skip
            up = rng.choice([
                pb.Up(join=pb.Join(member=member, reason=rng.choice(["new", "failed", "boundary"]), number=n)),
                pb.Up(suspects=pb.Suspects(replica_ids=["0:x", "1:x", name])),
                pb.Up(progress=pb.Progress(quorum_id=2**50, step=10**9, number=n, step_seconds=1e-9)),
                pb.Up(pause=pb.Pause(seconds=1e6, reason="\x1b[2J\nno")),
                pb.Up(leave=pb.Leave(state=state())),
            ])  # fmt: skip
            liar.send(up)
        aim.over.wait(rng.uniform(0.05, 0.5))
        liar.close()
        aim.did["sessions"] = aim.did.get("sessions", 0) + 1
