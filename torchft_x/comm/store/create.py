"""Stores where the members of a new process group find each other, and clients of them.

The address of our store (`torchft_x.comm.store.server`) is ``keyed://KEY@host:port/prefix``; it serves only clients
that know the key. Torch's TCPStore, which serves everybody, is ``host:port/prefix`` (``[v6]:port/prefix``, also
without brackets), as in torchft: for stores that users bring.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections import deque
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from torchft_x.comm.store.client import MeetingStore
from torchft_x.comm.store.connection import Connection, TorchConnection
from torchft_x.comm.store.server import StoreServer
from torchft_x.descriptors import not_inherited, port_not_inherited, shut
from torchft_x.durations import seconds
from torchft_x.errors import AddressError, UnreachableError
from torchft_x.net import Address, parse_address

_SCHEME = "keyed://"
_MAX_KEY = 256  # characters
_KEPT = 64  # number of stores of `create_store_client` that are kept alive, the newest


class KeyedAddress(NamedTuple):
    """Address of a store of ours."""

    host: str
    port: int
    key: str
    """Hexadecimal. Never show it: it grants read and write access to the store."""

    def __repr__(self) -> str:
        return f"KeyedAddress({self.target})"

    @property
    def target(self) -> str:
        """``host:port``, for messages."""
        return Address(self.host, self.port).target

    @property
    def text(self) -> str:
        """The whole address with its key, without a prefix."""
        return f"{_SCHEME}{self.key}@{self.target}"


def split_store_address(text: str) -> tuple[Address | KeyedAddress, str]:
    """Split ``host:port/prefix``, with or without a key, into (address, prefix).

    An IPv6 address needs no brackets, since a port always follows. Raises `AddressError`, which never shows a key.
    """
    key, rest = "", text
    if text.startswith(_SCHEME):
        key, at, rest = text.removeprefix(_SCHEME).partition("@")
        if not at or not key or len(key) > _MAX_KEY or set(key) - set("0123456789abcdef") or len(key) % 2:
            raise AddressError(f"store address: it begins with {_SCHEME}, but no key follows.")
    where, _, prefix = rest.partition("/")
    address = parse_address(_in_brackets(where), what="store address")
    if address.port == 0:
        raise AddressError(f"store address {rest!r} has port 0; it must name the port the store listens on.")
    return KeyedAddress(*address, key) if key else address, prefix


def _in_brackets(where: str) -> str:
    host, _, port = where.rpartition(":")
    try:
        return f"[{ipaddress.IPv6Address(host)}]:{port}"
    except ValueError:
        return where  # a name, an IPv4 address, or an IPv6 address with brackets


def create_store_client(store_addr: str, timeout: float | timedelta = 60.0) -> dist.Store:
    """Return a store client for ``host:port/prefix``, whose keys are under the prefix.

    `timeout` holds for the connect and for each call. Raises `UnreachableError` at once if nothing listens at the
    address, and `AddressError` if the address is malformed or its host unknown.
    """
    address, prefix = split_store_address(store_addr)
    store = StoreClient(address).open(seconds(timeout)).under(prefix)
    _kept.append(store)
    return store


def serve_store(host: str, port: int = 0) -> tuple[StoreServer, KeyedAddress]:
    """Serve a store of ours from this process until it is closed. Return it and the address by which others reach it.

    It listens on one address family, and on loopback only if `host` is a loopback address. Raises as `host_store`.
    """
    listener, _ = listen(host, port)
    server = StoreServer(listener)
    return server, KeyedAddress(host, int(listener.getsockname()[1]), server.key.hex())


def host_store(host: str, timeout: float | timedelta = 60.0, port: int = 0) -> tuple[dist.TCPStore, Address]:
    """Serve a torch store on `port` (0: a free one). Return it and the address by which others reach it.

    The store answers everybody. It listens on one address family only, and on loopback only if `host` is a loopback
    address. Torch's own listener takes both families at once, sees IPv4 callers as ``::ffff:a.b.c.d``, and on each
    connect asks the name server for that address's name, which no hosts file has. Raises `AddressError` if `host` is
    unknown or is no address of ours, and `UnreachableError` if the port is taken.
    """
    listener, _ = listen(host, port)
    port = int(listener.getsockname()[1])
    try:
        store = dist.TCPStore(
            host,
            port,
            None,
            True,
            timeout=timedelta(seconds=seconds(timeout)),
            wait_for_workers=False,
            master_listen_fd=listener.fileno(),
        )
    except RuntimeError as e:
        listener.close()
        raise UnreachableError(f"A store can't be served at {host}:{port}: {str(e).splitlines()[0]}") from None
    listener.detach()  # the store closes the descriptor
    port_not_inherited(port)
    return store, Address(host, port)


def listen(host: str, port: int, backlog: int = 2048) -> tuple[socket.socket, str]:
    """Return a listener for callers of `host`, and the IP address of `host`. Raises as `host_store`."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as e:
        raise AddressError(f"The advertised host {host!r} can't be resolved ({e.strerror or e}).") from None
    family, kind, protocol, _, where = found[0]
    shown = str(where[0])
    loopback = ipaddress.ip_address(shown.split("%")[0]).is_loopback
    listener = not_inherited(socket.socket(family, kind, protocol))
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((shown if loopback else "", port))
        listener.listen(backlog)
    except OSError as e:
        listener.close()
        if e.errno == errno.EADDRINUSE:
            raise UnreachableError(f"Port {port} of {host} is in use.") from None
        raise AddressError(f"Nothing can listen for {host!r}: {e.strerror or e}.") from None
    return listener, shown


class StoreClient:
    """Client of a store, which keeps its connection and whose blocking calls another thread can end."""

    def __init__(self, address: Address | KeyedAddress) -> None:
        self.address = address  # address of the store
        self._socket: socket.socket | None = None  # connecting or connected
        self._connection: Connection | TorchConnection | None = None
        self._store: MeetingStore | None = None  # the whole store, once connected
        self._is_shut = False  # set for good by `shut`

    @staticmethod
    def of(address: Address | KeyedAddress, old: StoreClient | None) -> StoreClient:
        """Return `old` if it is connected to this store, otherwise a new client."""
        usable = old is not None and old.address == address and old._store is not None and not old._is_shut
        return old if old is not None and usable else StoreClient(address)

    def open(self, timeout: float) -> MeetingStore:
        """Return the store. Connect first if there is no connection or it is lost.

        `timeout` (s) holds for the connect, and from then on for each call. Errors as in `create_store_client`.
        """
        if self._is_shut:
            raise UnreachableError(f"The client of the store at {self.address.target} was shut.")
        if self._store is None or self._connection is None or not self._connection.is_open:
            self._connection = self._connect(timeout)
            if self._is_shut:  # `shut` came during the connect
                self._connection.shut()
            self._store = MeetingStore(self._connection)
        self._connection.timeout = timeout
        return self._store

    def shut(self) -> None:
        """End the connection for good, so that a call in progress in another thread fails now."""
        self._is_shut = True
        sock = self._socket
        if sock is not None:
            shut(sock)
        if self._connection is not None:
            self._connection.shut()

    def _connect(self, timeout: float) -> Connection | TorchConnection:
        if isinstance(self.address, Address):
            return TorchConnection(self.address, timeout, self._use)
        host, port, key = self.address
        return Connection(Address(host, port), bytes.fromhex(key), timeout, self._use)

    def _use(self, sock: socket.socket) -> None:
        self._socket = sock
        if self._is_shut:  # `shut` came before the connect
            raise OSError("the client was shut")


# Torch keeps only the C++ half of a store. These are kept for the process groups that were created with them.
_kept: deque[MeetingStore] = deque(maxlen=_KEPT)
