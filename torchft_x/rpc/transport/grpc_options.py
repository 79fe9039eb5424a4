"""What every server and client of this room shares: names of services, limits, gRPC options, listening, channels.

Messages cross gRPC as plain bytes; `codec.messages` parses and makes them. So bytes made once can go to many, and garbage is
answered by our own code instead of by a traceback in gRPC's.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from torchft_x._version import __version__
from torchft_x.descriptors import port_not_inherited
from torchft_x.errors import AddressError, RefusedError
from torchft_x.net import Address, advertise_host, any_host
from torchft_x.timing import TIMING

WIRE = 2
"""Version of our own messages. A session of another version is refused with a sentence. 2: grants over many steps and
the vote between groups."""

MAX_MESSAGE = 16 << 20
"""Bytes of one message to a client: 4096 members of 4 KiB, far above what the limits of `codec.messages` let through."""
MAX_REQUEST = 4 << 20
"""Bytes of one message to a server. A hello that names a quorum of 4096 groups has 1 MB."""
MAX_OPEN_REQUEST = 1 << 20
"""The same where there is no token, so that whoever reaches the port may begin messages."""
MAX_CALLS = 128
"""Calls and streams on one connection at a time; a client's next ones wait."""
MAX_HEADERS = 8 << 10
"""Bytes of a call's headers. Ours have 300, a token 512 at most."""
GREETING_TIMEOUT = 2.0
"""Seconds a new connection has to say that it speaks HTTP/2."""
IDLE_TIMEOUT = 5.0
"""Seconds a connection may be without a call. A client whose connection was closed for it makes another one."""

LIGHTHOUSE = "torchft.LighthouseService"
MANAGER = "torchft.ManagerService"
SESSION = "torchft_x.SessionService"
SUPERVISE = "torchft_x.SuperviseService"
STATUS = "torchft_x.StatusService"
GROUP = "torchft_x.GroupService"

_COMMON = [
    ("grpc.max_send_message_length", MAX_MESSAGE),
    # A peer that vanished without closing (power, cable) is noticed after time + timeout even on an idle connection.
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
    ("grpc.server_handshake_timeout_ms", int(GREETING_TIMEOUT * 1000)),
    ("grpc.max_connection_idle_ms", int(IDLE_TIMEOUT * 1000)),
    ("grpc.so_reuseport", 0),  # else two lighthouses could share a port, each seeing half of the groups
    # The peer's clients ping each 60 s, ours each 10 s; gRPC's default would cut them off for it.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
]

CHANNEL_OPTIONS = [
    *_COMMON,
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_metadata_size", 16 << 10),  # a refusal's sentence comes in a header
    ("grpc.use_local_subchannel_pool", 1),  # a channel's state (back-off!) is its own
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # also the time one connect may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),  # an http_proxy of the environment is not meant for a cluster's inside
]


def server_options(*, guarded: bool, connections: int) -> list[tuple[str, int]]:
    """Of a server that takes so many connections. `guarded`: it has a token, which is checked when a call's headers come."""
    return [
        *_SERVER_OPTIONS,
        ("grpc.max_receive_message_length", MAX_REQUEST if guarded else MAX_OPEN_REQUEST),
        ("grpc.max_allowed_incoming_connections", connections),
    ]


UnaryHandler = Callable[[bytes, Any], Awaitable[bytes]]
StreamHandler = Callable[[Any, Any], Awaitable[None]]


def unary_service(name: str, methods: Mapping[str, UnaryHandler]) -> grpc.GenericRpcHandler:
    """A service of unary methods that take and return bytes."""
    handlers = {method: grpc.unary_unary_rpc_method_handler(handler) for method, handler in methods.items()}
    return grpc.method_handlers_generic_handler(name, handlers)


def stream_service(name: str, method: str, handler: StreamHandler) -> grpc.GenericRpcHandler:
    """A service with one bidirectional stream of bytes, handled through ``context.read()`` and ``write()``."""
    return grpc.method_handlers_generic_handler(name, {method: grpc.stream_stream_rpc_method_handler(handler)})


def watch_service(name: str, method: str, handler: StreamHandler) -> grpc.GenericRpcHandler:
    """A service with one method: a request, then a stream of bytes down through ``context.write()``."""
    return grpc.method_handlers_generic_handler(name, {method: grpc.unary_stream_rpc_method_handler(handler)})


def listen(server: grpc.aio.Server, bind: Address, what: str) -> int:
    """Let the server listen and return its port. Raises `AddressError` (port in use, not our address, ...)."""
    if bind.host == "::":
        bind = Address(any_host(), bind.port)  # hosts without IPv6
    # gRPC would say only "failed to bind" and print its own lines; a socket of our own tells the reason first.
    try:
        family = socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((bind.host, bind.port))
        port = int(server.add_insecure_port(bind.target))
        port_not_inherited(port)
        return port
    except OSError as e:
        reason = e.strerror or str(e)
    except RuntimeError:  # lost a race for the port
        reason = "Address already in use"
    raise AddressError(f"{what} can't listen on {bind.target}: {reason}; free the port or choose another.")


def advertised(bind: Address, port: int, host: str | None = None) -> Address:
    """What to tell others: `host` if given, else the one address the server listens on, else this host's name."""
    if not host and bind.host not in ("::", "0.0.0.0"):
        host = bind.host
    return Address(host or advertise_host(), port)


def aio_channel(address: Address) -> grpc.aio.Channel:
    """Only on the thread of `loop`."""
    port_not_inherited(address.port)
    return grpc.aio.insecure_channel(address.target, options=CHANNEL_OPTIONS)


def channel(address: Address) -> grpc.Channel:
    """For blocking calls from any thread."""
    port_not_inherited(address.port)
    return grpc.insecure_channel(address.target, options=CHANNEL_OPTIONS)


def boot_id() -> str:
    """Of this host's present boot; empty where the system doesn't say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f.read(64).strip()
    except (OSError, ValueError):
        return ""


def check_version(theirs: int, who: str) -> None:
    """Raises `RefusedError` if a client speaks another version of our wire; `who` is the client's word."""
    if theirs != WIRE:
        caller = "".join(c for c in who if c.isprintable())
        raise RefusedError(
            f"This lighthouse (torchft_x/{__version__}) speaks version {WIRE} of torchft_x's wire and {caller} "
            f"version {theirs}; install the same torchft_x everywhere."
        )


TIMEOUT_KEY = "torchft-x-timeout"
"""Metadata of our own clients' calls: seconds after which to answer that nothing came. gRPC's deadline is later
(`TIMING.late_answer`), so that the answer arrives on a busy machine, too: it says what is missing, and whether to ask again."""


def time_left(context: Any) -> float | None:
    """Seconds until the caller of this call must be answered; None: it waits for ever."""
    left: float | None = context.time_remaining()
    for key, value in context.invocation_metadata() or ():
        if key == TIMEOUT_KEY:
            try:
                told = float(value)
            except ValueError:
                continue
            return told if left is None or 0 <= told < left else left
    return None if left is None else left - min(TIMING.early_answer, left * 0.05)
