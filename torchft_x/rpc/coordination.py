"""torchft's Python interface to the coordination layer: the same names, arguments, defaults and errors.

Source: ``torchft.coordination`` / ``torchft._torchft`` of torchft. Errors are `TimeoutError` if a deadline passed, else
`RuntimeError`. Durations are seconds or `timedelta`. Our additional arguments are keyword-only: `token`, by default
TORCHFT_X_TOKEN or the content of TORCHFT_X_TOKEN_FILE.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, fields
from typing import Any

from torchft_x import env, net, tls
from torchft_x.core.lighthouse.machine import LighthouseConfig, SilenceLimits
from torchft_x.core.types import AttemptId, JoinReason, Member, State
from torchft_x.durations import Seconds, seconds
from torchft_x.net import parse_address
from torchft_x.rpc.codec import messages
from torchft_x.rpc.group.client import open_channel
from torchft_x.rpc.group.server import GroupServer
from torchft_x.rpc.lighthouse.server import LighthouseShell
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.transport import grpc_options, loop
from torchft_x.rpc.transport.grpc_errors import call
from torchft_x.rpc.transport.token import check_token, metadata

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timestamp:
    """Unix time: whole seconds, and nanoseconds."""

    seconds: int = 0
    nanos: int = 0


@dataclass(frozen=True)
class QuorumMember:
    """One member as torchft's clients see it.

    Args:
        replica_id: the member's name.
        address: address of its group server; store_address: address of its store.
        step, world_size: number of committed steps, and of ranks of the group.
        shrink_only: whether it has asked for no newcomers.
        data: its own JSON data, or None.
    """

    replica_id: str
    address: str
    store_address: str
    step: int
    world_size: int
    shrink_only: bool
    data: dict[str, Any] | None = None


@dataclass(frozen=True)
class Quorum:
    """A quorum as torchft's clients see it.

    Args:
        quorum_id: the config id, which changes only when members change or a commit failed.
        participants: the quorum's members.
        created: when the quorum was formed.
    """

    quorum_id: int
    participants: list[QuorumMember]
    created: Timestamp


@dataclass
class QuorumResult:
    """One rank's view of a quorum; `torchft_x.core.heal` explains the fields."""

    quorum_id: int = 0
    replica_rank: int = 0
    replica_world_size: int = 1
    recover_src_manager_address: str = ""
    recover_src_replica_rank: int | None = None
    recover_dst_replica_ranks: list[int] = field(default_factory=list)
    store_address: str = ""
    max_step: int = 0
    max_replica_rank: int | None = None
    max_world_size: int = 1
    heal: bool = False
    commit_failures: int = 0
    replica_ids: list[str] = field(default_factory=list)
    reconfigure_handles: list[str] = field(default_factory=list)


class LighthouseServer:
    """A lighthouse inside this process.

    Args:
        bind: ``host:port`` to listen on; port 0: any.
        min_replicas: number of groups that a quorum needs.
        join_timeout_ms: how long the lighthouse waits for live groups that haven't asked; 100 if None.
        quorum_tick_ms: interval of the clock's ticks; 100 if None, or half of a shorter heartbeat_timeout_ms.
        heartbeat_timeout_ms: silence of any kind that means death; None: by its kind, see `torchft_x lighthouse
            --help`.
        token: the run's token, see the module.

    Raises `AddressError` if it can't listen there, `ConfigError` naming a bad argument.
    """

    def __init__(
        self,
        bind: str,
        min_replicas: int,
        join_timeout_ms: int | None = None,
        quorum_tick_ms: int | None = None,
        heartbeat_timeout_ms: int | None = None,
        *,
        token: str | None = None,
    ) -> None:
        if quorum_tick_ms is None:
            quorum_tick_ms = min(100, max(1, (heartbeat_timeout_ms or 200) // 2))
        config = LighthouseConfig(
            min_replicas=min_replicas,
            join_timeout=(100 if join_timeout_ms is None else join_timeout_ms) / 1000,
            tick=quorum_tick_ms / 1000,
            silence=SilenceLimits.all(None if heartbeat_timeout_ms is None else heartbeat_timeout_ms / 1000),
            boot_id=net.boot_id(),
        )
        where = parse_address(bind, what="bind address")
        self._shell = LighthouseShell(config, token=_token(token))  # runs on the loop
        port = loop.call(self._shell.start(where), 10.0, "starting the lighthouse")
        self._address = grpc_options.advertised(where, port).url  # URL by which others reach it
        self._closed = False  # set by shutdown

    def __repr__(self) -> str:
        return f"LighthouseServer({self._address}{', closed' if self._closed else ''})"

    def address(self) -> str:
        """Return the ``http://host:port`` by which others reach this lighthouse."""
        return self._address

    def shutdown(self) -> None:
        """Close every stream and free the port, at once."""
        if not self._closed:
            self._closed = True
            loop.call(self._shell.stop(), 5.0, "stopping the lighthouse")


class LighthouseClient:
    """Client of a lighthouse's unary service. Thread-safe.

    Args:
        addr: ``http://host:port``.
        connect_timeout: time until the lighthouse must have taken a connection.
        token: the run's token, see the module.
    """

    def __init__(self, addr: str, connect_timeout: Seconds, *, token: str | None = None) -> None:
        self._what = f"lighthouse at {addr}"  # the server's name in sentences
        self._metadata = metadata(_token(token))  # sent with every call
        # Closed with the object.
        self._channel = open_channel(addr, seconds(connect_timeout, "connect_timeout"), "lighthouse")

    def quorum(
        self,
        replica_id: str,
        timeout: Seconds,
        address: str = "",
        store_address: str = "",
        step: int = 0,
        world_size: int = 0,
        shrink_only: bool = False,
        data: dict[str, Any] | None = None,
    ) -> Quorum:
        """Join and wait for the next quorum. Raises `TimeoutError` at the deadline."""
        member = Member(
            replica_id,
            address,
            store_address,
            State(step),
            world_size=world_size,
            shrink_only=shrink_only,
            data="" if data is None else json.dumps(data),
        )
        request = peer_pb.LighthouseQuorumRequest(requester=messages.peer_member_to_proto(member))
        reply = messages.parse(peer_pb.LighthouseQuorumResponse, self._call("Quorum", request, timeout), "answer")
        created = Timestamp(reply.quorum.created.seconds, reply.quorum.created.nanos)
        return Quorum(reply.quorum.quorum_id, [_member(p) for p in reply.quorum.participants], created)

    def heartbeat(self, replica_id: str, timeout: Seconds = 5.0) -> None:
        """Report that this replica lives."""
        self._call("Heartbeat", peer_pb.LighthouseHeartbeatRequest(replica_id=replica_id), timeout)

    def _call(self, method: str, request: Any, timeout: Seconds) -> bytes:
        options = grpc_options.within(seconds(timeout), self._metadata)
        path = f"/{grpc_options.LIGHTHOUSE}/{method}"
        return call(self._channel, path, request.SerializeToString(), self._what, **options)


class ManagerServer:
    """A group server under torchft's name.

    Args:
        replica_id: the group's name.
        lighthouse_addr: ``http://host:port``.
        hostname, bind: name by which others reach this server, and ``host:port`` on which it listens.
        store_addr: address of the group's store, for the members of a quorum.
        world_size: number of ranks of the group.
        heartbeat_interval: accepted and ignored, because a session shows that the group lives.
        connect_timeout: time until the first session with the lighthouse must be established.
        quorum_retries: accepted and ignored.
        attempt_id: identity of this attempt; a new one if None.
        token: the run's token, see the module.
    """

    def __init__(
        self,
        replica_id: str,
        lighthouse_addr: str,
        hostname: str,
        bind: str,
        store_addr: str,
        world_size: int,
        heartbeat_interval: Seconds,
        connect_timeout: Seconds,
        quorum_retries: int = 0,
        *,
        attempt_id: AttemptId | None = None,
        token: str | None = None,
    ) -> None:
        del quorum_retries
        seconds(heartbeat_interval, "heartbeat_interval")  # only checked, because a session shows that the group lives
        self._server = GroupServer(
            replica_id=replica_id,
            lighthouse=lighthouse_addr,
            host=hostname,
            bind=bind,
            store_address=store_addr,
            world_size=world_size,
            attempt_id=attempt_id,
            token=_token(token),
            connect_timeout=seconds(connect_timeout, "connect_timeout"),
        )

    def __repr__(self) -> str:
        return f"ManagerServer({self._server!r})"

    def address(self) -> str:
        return self._server.address()

    def shutdown(self) -> None:
        self._server.close()


class ManagerClient:
    """Client of a group server, ours or torchft's, for one rank of its group. Thread-safe.

    Args:
        addr: ``http://host:port``.
        connect_timeout: time until the server must have taken a connection.
        token: the run's token, see the module.
    """

    def __init__(self, addr: str, connect_timeout: Seconds, *, token: str | None = None) -> None:
        self._what = f"group server at {addr}"  # the server's name in sentences
        self._metadata = metadata(_token(token))  # sent with every call
        # Closed with the object.
        self._channel = open_channel(addr, seconds(connect_timeout, "connect_timeout"), "group server")

    def _quorum(
        self,
        group_rank: int,
        step: int,
        checkpoint_metadata: str,
        shrink_only: bool,
        timeout: Seconds,
        init_sync: bool = True,
        commit_failures: int = 0,
        reconfigure_handle: str = "",
    ) -> QuorumResult:
        request = peer_pb.ManagerQuorumRequest(
            group_rank=group_rank,
            step=step,
            checkpoint_metadata=checkpoint_metadata,
            shrink_only=shrink_only,
            init_sync=init_sync,
            commit_failures=commit_failures,
            reconfigure_handle=reconfigure_handle,
            reason=JoinReason.FAILED.value if commit_failures else JoinReason.BOUNDARY.value,
        )
        p = messages.parse(peer_pb.ManagerQuorumResponse, self._call("Quorum", request, timeout), "answer")
        result = QuorumResult(**{f.name: getattr(p, f.name) for f in fields(QuorumResult)})
        for name in ("recover_src_replica_rank", "max_replica_rank"):
            if not p.HasField(name):
                setattr(result, name, None)
        for name in ("recover_dst_replica_ranks", "replica_ids", "reconfigure_handles"):
            setattr(result, name, list(getattr(p, name)))
        return result

    def _checkpoint_metadata(self, rank: int, timeout: Seconds) -> str:
        request = peer_pb.CheckpointMetadataRequest(rank=rank)
        data = self._call("CheckpointMetadata", request, timeout)
        return str(messages.parse(peer_pb.CheckpointMetadataResponse, data, "answer").checkpoint_metadata)

    def should_commit(self, group_rank: int, step: int, should_commit: bool, timeout: Seconds) -> bool:
        request = peer_pb.ShouldCommitRequest(should_commit=should_commit, group_rank=group_rank, step=step)
        data = self._call("ShouldCommit", request, timeout)
        return bool(messages.parse(peer_pb.ShouldCommitResponse, data, "answer").should_commit)

    def _call(self, method: str, request: Any, timeout: Seconds) -> bytes:
        options = grpc_options.within(seconds(timeout), self._metadata)
        path = f"/{grpc_options.MANAGER}/{method}"
        return call(self._channel, path, request.SerializeToString(), self._what, **options)


def lighthouse_main() -> int:
    """Run the lighthouse's console script, as torchft's function of this name does. Return its exit code."""
    from torchft_x.rpc.lighthouse.main import main

    return main()


def _token(argument: str | None) -> str | None:
    """Return the argument, else the run's token, else None. Raises `ConfigError`."""
    return tls.use_token(check_token(argument if argument is not None else env.read_token()))


def _member(p: peer_pb.QuorumMember) -> QuorumMember:
    try:
        data = json.loads(p.data) if p.data else None
    except ValueError:
        data = None
        log.warning("The data of member %s is not JSON; ignored.", p.replica_id)
    return QuorumMember(
        p.replica_id,
        p.address,
        p.store_address,
        p.step,
        p.world_size,
        p.shrink_only,
        data if isinstance(data, dict) else None,
    )
