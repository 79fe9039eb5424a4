"""Small pieces the tests of this room share: servers that close themselves, groups that step, raw streams."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from tests.util import clock, scaled
from torchft_x.core.types import JoinReason, Life, State
from torchft_x.net import parse_address
from torchft_x.rpc.codec.ranks import QuorumReply
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.rpc.group.client import GroupClient, LocalGroupClient
from torchft_x.rpc.group.server import GroupServer
from torchft_x.rpc.transport import grpc_options

LOCAL = "127.0.0.1:0"


@contextlib.contextmanager
def lighthouse(min_replicas: int = 1, bind: str = LOCAL, **kwargs: Any) -> Iterator[LighthouseServer]:
    # Groups that are here but have not asked are waited for: else whose thread is late is not in the quorum.
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
        server.shutdown()


@contextlib.contextmanager
def client(address: str, **kwargs: Any) -> Iterator[GroupClient]:
    made = GroupClient(address, connect_timeout=scaled(10.0), **kwargs)
    try:
        yield made
    finally:
        made.close()


def asking(server: LighthouseServer) -> list[str]:
    """Replica ids that wait for a quorum."""
    return server.status()["asking"]


def known(server: LighthouseServer) -> list[str]:
    """Replica ids the lighthouse has heard of."""
    return [x["replica_id"] for x in server.status()["members"]]


def is_marked(server: LighthouseServer, replica_id: str, mark: str) -> bool:
    """Whether the lighthouse counts it as ``lost`` or ``over``."""
    return any(x["replica_id"] == replica_id and x[mark] for x in server.status()["members"])


def life(attempt: int = 0, token: str = "") -> Life:
    return Life(attempt, 1.0 + attempt, token)


class Asking(threading.Thread):
    """One quorum request on a thread; `result()` returns the reply or raises what it raised."""

    def __init__(self, target: GroupServer | GroupClient | LocalGroupClient, rank: int = 0, **kwargs: Any) -> None:
        super().__init__(daemon=True)
        self._target = target
        usual = {"state": State(), "timeout": scaled(10.0), "reason": JoinReason.NEW}
        self._kwargs = {"group_rank": rank, **usual, **kwargs}
        self._reply: QuorumReply | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._reply = self._target.quorum(**self._kwargs)
        except BaseException as e:
            self._error = e

    def result(self) -> QuorumReply:
        self.join(scaled(20.0))
        if self._error is not None:
            raise self._error
        assert self._reply is not None, f"no answer within {scaled(20):g} s"
        return self._reply


class Watched:
    """Records what a watch calls back."""

    def __init__(self) -> None:
        self.overs: list[tuple[int, tuple[str, ...], str]] = []
        self.ends: list[tuple[str, bool]] = []
        self.threads: set[str] = set()
        self.left = False  # of the newest

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
