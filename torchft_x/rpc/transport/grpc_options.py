"""Shared settings of all servers and clients of `rpc`: names of services, limits, gRPC options, listening, channels.

Messages cross gRPC as plain bytes, which `codec.messages` encodes and parses. So bytes encoded once can go to many
receivers, and our own code answers garbage, instead of a traceback in gRPC's.
"""

from __future__ import annotations

import resource
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from torchft_x import tls
from torchft_x._version import __version__
from torchft_x.descriptors import port_not_inherited
from torchft_x.errors import AddressError, RefusedError
from torchft_x.net import Address, advertise_host, any_host, bound
from torchft_x.rpc.transport.token import Metadata, TokenCheck
from torchft_x.timing import CONNECT, TIMING

WIRE = 4
"""Version of our own messages. A session of another version is refused with a sentence. 4: quorums are packed."""

MAX_CLIENT_MESSAGE = 16 << 20
"""Bytes of one message to a client: 4096 members of 4 KiB, far above what the limits of `codec.messages` let
through."""
MAX_REQUEST = 4 << 20
"""Bytes of one message to a server. A hello that names a quorum of 4096 groups has 1 MB."""
MAX_OPEN_REQUEST = 1 << 20
"""Bytes of one message to a server without a token, to which anybody who reaches the port may send messages."""
MAX_CALLS = 128
"""Concurrent calls and streams on one connection; further ones of that client wait."""
MAX_HEADERS = 8 << 10
"""Bytes of a call's headers. Our clients' headers have 300 bytes, a token has 512 at most."""
IDLE_TIMEOUT = 5.0
"""Seconds that a connection may be without a call before it is closed. Its client reconnects at its next call."""
MOST_DESCRIPTORS = 65536
"""Highest limit that is set: some programs iterate over all possible descriptors."""
OWN_DESCRIPTORS = 128
"""Descriptors a lighthouse needs for itself."""

LIGHTHOUSE = "torchft.LighthouseService"
MANAGER = "torchft.ManagerService"
SESSION = "torchft_x.SessionService"
SUPERVISE = "torchft_x.SuperviseService"
STATUS = "torchft_x.StatusService"
GROUP = "torchft_x.GroupService"

_COMMON = [
    ("grpc.max_send_message_length", MAX_CLIENT_MESSAGE),
    # A remote host that vanished without closing (power, cable) is noticed after time + timeout, even on an idle
    # connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

_SERVER_OPTIONS = [
    *_COMMON,
    ("grpc.max_metadata_size", MAX_HEADERS),
    ("grpc.absolute_max_metadata_size", MAX_HEADERS),
    ("grpc.max_concurrent_streams", MAX_CALLS),
    ("grpc.server_handshake_timeout_ms", int(CONNECT * 1000)),
    ("grpc.max_connection_idle_ms", int(IDLE_TIMEOUT * 1000)),
    ("grpc.so_reuseport", 0),  # else two lighthouses could share a port, each seeing half of the groups
    # torchft's clients ping every 60 s, ours every 10 s; gRPC's default would close their connections for it.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
]

CHANNEL_OPTIONS = [
    *_COMMON,
    ("grpc.max_receive_message_length", MAX_CLIENT_MESSAGE),
    ("grpc.max_metadata_size", 16 << 10),  # a refusal's sentence comes in a header
    ("grpc.use_local_subchannel_pool", 1),  # channels must not share state, such as the back-off
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # also the time limit of one connect
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),  # an http_proxy of the environment is not meant for a cluster's inside
]


def make_server(token: str | None, connections: int) -> grpc.aio.Server:
    """Make a server that accepts at most `connections`.

    With a token, which is checked when a call's headers arrive, it may take larger messages."""
    options = [
        *_SERVER_OPTIONS,
        ("grpc.max_receive_message_length", MAX_OPEN_REQUEST if token is None else MAX_REQUEST),
        ("grpc.max_allowed_incoming_connections", connections),
    ]
    return grpc.aio.server(interceptors=[TokenCheck(token)], options=options)


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files, as far as its hard limit lets it, and return it.

    Most systems begin with 1,024 and allow half a million; the low one is for programs that use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a sandbox may forbid it
        return soft
    return wanted


def lighthouse_connections(limit: int) -> int:
    """Return the number of connections that a lighthouse accepts, given its limit of open files.

    Each costs a descriptor, even a silent one. If strangers took all, the process could open no socket of its own: a
    lighthouse could not probe a member's address, a trainer could not connect to the others.
    """
    return max(limit // 2, limit - 4 * OWN_DESCRIPTORS)


def group_connections(limit: int, world_size: int) -> int:
    """Return the number of connections that a group server accepts, given its limit of open files.

    They come from its own ranks and from healing groups; the training needs the remaining descriptors."""
    return max(limit // 4, min(4 * world_size + 64, limit // 2))


StreamHandler = Callable[[Any, Any], Awaitable[None]]


def stream_service(name: str, method: str, handler: StreamHandler) -> grpc.GenericRpcHandler:
    """Make a service with one bidirectional stream of bytes, handled through ``context.read()`` and ``write()``."""
    return grpc.method_handlers_generic_handler(name, {method: grpc.stream_stream_rpc_method_handler(handler)})


def watch_service(name: str, method: str, handler: StreamHandler) -> grpc.GenericRpcHandler:
    """Make a service with one method: it takes a request and sends a stream of bytes through ``context.write()``."""
    return grpc.method_handlers_generic_handler(name, {method: grpc.unary_stream_rpc_method_handler(handler)})


def listen(server: grpc.aio.Server, bind: Address, what: str) -> int:
    """Let the server listen and return its port. Raises `AddressError` (port in use, not our address, ...)."""
    if bind.host == "::":
        bind = Address(any_host(), bind.port)  # hosts without IPv6
    # gRPC would report only "failed to bind" and print lines of its own; binding a socket of ours first gives the
    # reason.
    try:
        bound(bind).close()
        if tls.is_on():
            own = tls.identity()
            credentials = grpc.ssl_server_credentials([(own.key, own.cert)], own.ca, require_client_auth=True)
            port = int(server.add_secure_port(bind.target, credentials))
        else:
            port = int(server.add_insecure_port(bind.target))
        port_not_inherited(port)
        return port
    except OSError as e:
        reason = e.strerror or str(e)
    except RuntimeError:  # lost a race for the port
        reason = "Address already in use"
    raise AddressError(f"{what} can't listen on {bind.target}: {reason}; free the port or choose another.")


def advertised(bind: Address, port: int, host: str | None = None) -> Address:
    """Return the address to give to others: `host`, else the host in `bind` if no wildcard, else this host's name."""
    if not host and bind.host not in ("::", "0.0.0.0"):
        host = bind.host
    return Address(host or advertise_host(), port)


def aio_channel(address: Address) -> grpc.aio.Channel:
    """Open a channel for use on the thread of `loop` only."""
    port_not_inherited(address.port)
    if not tls.is_on():
        return grpc.aio.insecure_channel(address.target, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address.target, *_secured())


def channel(address: Address) -> grpc.Channel:
    """Open a channel for blocking calls from any thread."""
    port_not_inherited(address.port)
    if not tls.is_on():
        return grpc.insecure_channel(address.target, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address.target, *_secured())


def _secured() -> tuple[grpc.ChannelCredentials, list[tuple[str, Any]]]:
    own = tls.identity()
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", own.name)]
    return grpc.ssl_channel_credentials(own.ca, own.key, own.cert), options


def check_version(theirs: int, who: str) -> None:
    """Raise `RefusedError` if a client speaks another version of our wire; `who` is the name that the client gave."""
    if theirs != WIRE:
        caller = "".join(c for c in who if c.isprintable())
        raise RefusedError(
            f"This lighthouse (torchft_x/{__version__}) speaks version {WIRE} of torchft_x's wire and {caller} "
            f"version {theirs}; install the same torchft_x everywhere."
        )


TIMEOUT_KEY = "torchft-x-timeout"
"""Metadata of our own clients' calls: seconds after which the server must answer that nothing came. gRPC's deadline is
later (`TIMING.late_answer`), so that this answer, which says what is missing and whether to ask again, arrives on a
busy machine, too."""
PAUSED_KEY = "torchft-x-paused"
"""Trailing metadata of a quorum call that ended while a group's pause was waited for. The client then asks again."""


def within(timeout: float, said: Metadata) -> dict[str, Any]:
    """Return gRPC's arguments for a call that is answered within `timeout` seconds; `said`: its other metadata."""
    return {"timeout": timeout + TIMING.late_answer, "metadata": (*said, (TIMEOUT_KEY, f"{timeout:.3f}"))}


def time_left(context: Any) -> float | None:
    """Return the seconds until this call must be answered, or None if its caller waits for ever."""
    left: float | None = context.time_remaining()
    for key, value in context.invocation_metadata() or ():
        if key == TIMEOUT_KEY:
            try:
                requested = float(value)
            except ValueError:
                continue
            return requested if left is None or 0 <= requested < left else left
    return None if left is None else left - min(TIMING.early_answer, left * 0.05)
