"""One attack for each kind of endpoint: by a member that lies, and by strangers without the token."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torchft_x.net import parse_address

from torchft_x.rpc.transport import grpc_options  # isort: skip
import grpc  # isort: skip
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport.token import metadata


@dataclass
class Aim:
    """Addresses of the attacked, and what came of the attack."""

    lighthouse: tuple[str, int]
    trainer: tuple[str, int]  # the group server of group 0
    checkpoint: tuple[str, int]  # and its checkpoint server
    token: str
    over: threading.Event = field(default_factory=threading.Event)  # the attack shall end
    did: dict[str, Any] = field(default_factory=dict)


def find(lighthouse: str, token: str) -> Aim:
    reply = _call(lighthouse, f"/{grpc_options.STATUS}/Status", b"", token)
    members = json.loads(pb.StatusReply.FromString(reply).json)["members"]
    address = next(m["address"] for m in members if m["replica_id"].startswith("0:"))
    request = peer_pb.CheckpointMetadataRequest(rank=0).SerializeToString()
    reply = _call(address, f"/{grpc_options.MANAGER}/CheckpointMetadata", request, token)
    where = peer_pb.CheckpointMetadataResponse.FromString(reply).checkpoint_metadata
    return Aim(_pair(lighthouse), _pair(address), _pair(where.removesuffix("/checkpoint/")), token)


def _call(url: str, path: str, request: bytes, token: str) -> bytes:
    with grpc.insecure_channel(parse_address(url).target) as channel:
        return channel.unary_unary(path)(request, timeout=10.0, metadata=metadata(token))


def _pair(url: str) -> tuple[str, int]:
    address = parse_address(url)
    return address.host, address.port


def idle_connections(aim: Aim, count: int = 1500) -> None:
    """Hold connections to a trainer's group server open without a word, and open those again that it closes (S5)."""
    held: list[socket.socket] = []
    opened = refused = 0
    while not aim.over.wait(0.2):
        held = [s for s in held if not _is_closed(s)]
        while len(held) < count and not aim.over.is_set():
            try:
                s = socket.create_connection(aim.trainer, timeout=1.0)
            except OSError:
                refused += 1
                break
            s.setblocking(False)
            held.append(s)
            opened += 1
        aim.did.update(opened=opened, refused=refused, open=len(held))
    for s in held:
        s.close()


def _is_closed(s: socket.socket) -> bool:
    try:
        while s.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    s.close()
    return True


def endless_headers(aim: Aim, connections: int = 80) -> None:
    """Send requests with endless headers to a checkpoint server (S11)."""
    made: list[socket.socket] = []
    sent = 0
    for _ in range(connections):
        with suppress(OSError):
            s = socket.create_connection(aim.checkpoint, timeout=0.3)
            made.append(s)
            s.sendall(b"GET /checkpoint/1/1 HTTP/1.1\r\n")
            for n in range(95):
                line = b"X-L%d: " % n + b"x" * 60_000 + b"\r\n"
                s.sendall(line)
                sent += len(line)
        if aim.over.is_set():
            break
    aim.did["sent_mb"] = round(sent / 1e6)
    aim.over.wait()
    for s in made:
        s.close()


def lies(aim: Aim) -> None:
    """Join again and again as a member that says random states, quorums, grants, suspects, pauses and results."""
    rng = random.Random(1)
    target = f"{aim.lighthouse[0]}:{aim.lighthouse[1]}"
    while not aim.over.is_set():
        over = threading.Event()
        with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            session = channel.stream_stream(f"/{grpc_options.SESSION}/Session")
            call = session(_words(rng, over), metadata=metadata(aim.token))
            aim.over.wait(rng.uniform(0.05, 0.5))
            over.set()
            call.cancel()
        aim.did["sessions"] = aim.did.get("sessions", 0) + 1


def _words(rng: random.Random, over: threading.Event) -> Iterator[bytes]:
    """One session: a hello, then whatever comes."""
    name = f"liar:{rng.randrange(10)}"

    def state() -> pb.State:
        return pb.State(step=rng.choice([0, 5, 1000, 10**9]), committed_in=rng.choice([0, 7, 2**50]))

    hello: dict[str, Any] = {"replica_id": name, "wire": grpc_options.WIRE, "library": "torchft_x/0", "runs_on": True}
    grant = rng.choice([0, 10**9])
    yield pb.Up(hello=pb.Hello(**hello, state=state(), granted_through=grant)).SerializeToString()
    for n in range(rng.randrange(4)):
        prepared = pb.Prepared(quorum=2**50, step=10**9 + 1, digest=1) if rng.random() < 0.3 else None
        member = pb.Member(
            replica_id=name, world_size=1, library="torchft_x/0", state=state(), prepared=prepared,
            address="http://127.0.0.1:1", store_address="127.0.0.1:1/x", torn=rng.random() < 0.2,
        )  # fmt: skip
        yield rng.choice([
            pb.Up(join=pb.Join(member=member, reason=rng.choice(["new", "failed", "boundary"]), number=n)),
            pb.Up(suspects=pb.Suspects(replica_ids=["0:x", "1:x", name])),
            pb.Up(progress=pb.Progress(quorum_id=2**50, step=10**9, number=n, step_seconds=1e-9)),
            pb.Up(pause=pb.Pause(seconds=1e6, reason="\x1b[2J\nno")),
            pb.Up(leave=pb.Leave(state=state())),
        ]).SerializeToString()  # fmt: skip
    over.wait()
