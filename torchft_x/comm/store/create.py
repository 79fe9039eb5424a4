"""Stores where the members of a new process group find each other, and clients of them.

The address of our store (`torchft_x.comm.store.server`) is ``keyed://KEY@host:port/prefix``; it serves only clients
that know the key. Torch's TCPStore, which serves everybody, is ``host:port/prefix`` (``[v6]:port/prefix``, also
without brackets), as in torchft: for stores that users bring. Three properties of torch's client shape `StoreClient`:

* Its connect takes 6 s to detect a closed port, so a plain socket tries first.
* A blocking call blocks every other caller of the same client, and can be ended from outside only by shutting its
  connection: `StoreClient.shut`.
* Each connect makes *both* sides look up the other's host name by its address. If the name server is slow, that takes
  5 s (in which the store serves nobody). So a client is kept and reused as long as the address stays.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import threading
import time
from collections import deque
from datetime import timedelta
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch.distributed as dist

from torchft_x.comm.store import sockets
from torchft_x.comm.store.client import Connection, Inside, MeetingStore
from torchft_x.comm.store.server import StoreServer
from torchft_x.descriptors import not_inherited, port_not_inherited, shut
from torchft_x.durations import seconds
from torchft_x.errors import AddressError, UnreachableError
from torchft_x.net import Address, parse_address

_NEVER = "?"  # a value that no key has
_SCHEME = "keyed://"
_MAX_KEY = 256  # characters
_POLL = 0.002  # seconds between two reads of torch's store
_KEPT = 64  # number of stores of `create_store_client` that are kept alive, the newest


class _ConnectLock:
    """Lock per store. Serialises connects, so that a new connection can't be confused with another client's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held from before the first connect until the connection is identified


# Forgotten with the last client that waits.
_connect_locks: WeakValueDictionary[Address | KeyedAddress, _ConnectLock] = WeakValueDictionary()
_connect_locks_guard = threading.Lock()  # guards `_connect_locks`


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
    client = client_of(address)
    store = under(client.open(seconds(timeout)), prefix)
    if isinstance(store, MeetingStore):
        _kept.append(store)
    return store


def under(store: dist.Store, prefix: str) -> dist.Store:
    """Return the part of a store whose keys begin with the prefix, or all of it if the prefix is empty."""
    if isinstance(store, MeetingStore):
        return store.under(prefix) if prefix else store
    return dist.PrefixStore(prefix, store) if prefix else store


def serve_store(host: str, port: int = 0) -> tuple[StoreServer, KeyedAddress]:
    """Serve a store of ours from this process until it is closed. Return it and the address by which others reach it.

    It listens on one address family, and on loopback only if `host` is a loopback address. Raises as `host_store`.
    """
    listener, _ = listen(host, port)
    server = StoreServer(listener)
    _here[server.key] = server
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


def value_within(store: dist.Store, key: str, seconds: float) -> bytes | None:
    """Return a key's value, or None if it has not come within `seconds` (sooner from torch's store: polled once)."""
    if isinstance(store, MeetingStore):
        return store.value_within(key, seconds)
    found = read_now(store, key)
    if found is None:
        time.sleep(min(seconds, _POLL))
    return found


def drop(store: dist.Store, keys: list[str]) -> None:
    """Delete keys, and ignore missing ones."""
    if isinstance(store, MeetingStore):
        store.drop(keys)
    else:
        for key in keys:
            store.delete_key(key)


def read_now(store: dist.Store, key: str) -> bytes | None:
    """Return a key's value or None without waiting, by a compare-and-set that never matches (`Store.get` waits)."""
    value: bytes = store.compare_set(key, _NEVER, _NEVER)
    return None if value == _NEVER.encode() else value


class StoreClient:
    """Client of torch's store, whose blocking calls another thread can end. `client_of` makes the right one."""

    def __init__(self, address: Address | KeyedAddress) -> None:
        self.address = address  # address of the store
        self._store: dist.TCPStore | None = None  # set once connected
        self._before: frozenset[int] | None = None  # while connecting: inodes of the sockets that existed before
        self._found: tuple[int, int] | None = None  # our connection's descriptor and inode, once established
        self._is_shut = False  # set for good by `shut`

    def __repr__(self) -> str:
        state = "shut" if self._is_shut else "new" if self._store is None else "connected"
        return f"StoreClient({self.address.target}: {state})"

    @property
    def usable(self) -> bool:
        """Whether the client is connected and can be reused."""
        return self._store is not None and not self._is_shut

    def open(self, timeout: float) -> dist.Store:
        """Return the store. Connect first if there is no connection or it is lost.

        `timeout` (s) holds for the connect, and from then on for each call. Errors as in `create_store_client`.
        """
        if self._store is None or not _answers(self._store):
            self._store = self._found = None
            if self._is_shut:
                raise UnreachableError(f"The client of the store at {self.address.target} was shut.")
            self._store = self._connect_in_turn(timeout)
        self._store.set_timeout(timedelta(seconds=timeout))
        return self._store

    def shut(self) -> None:
        """End the connection for good, so that a call in progress in another thread fails now."""
        self._is_shut = True
        found, before = self._found, self._before
        if found is None and before is not None:
            found = sockets.find_new(before, self.address.port)
        if found is not None:
            sockets.shut_one(*found)

    def _connect_in_turn(self, timeout: float) -> dist.TCPStore:
        deadline = time.monotonic() + timeout
        with _connect_locks_guard:
            connect_lock = _connect_locks.setdefault(self.address, _ConnectLock())
        if not connect_lock.lock.acquire(timeout=timeout):
            raise UnreachableError(
                f"The store at {self.address.target} did not answer another client for {timeout:g} s."
            )
        try:
            self._probe(max(deadline - time.monotonic(), 0.001))
            return self._connect(max(deadline - time.monotonic(), 0.001))
        finally:
            connect_lock.lock.release()

    def _probe(self, timeout: float) -> None:
        where = self.address.target
        try:
            socket.create_connection((self.address.host, self.address.port), timeout).close()
        except socket.gaierror as e:
            raise AddressError(
                f"store address {where}: {self.address.host!r} can't be resolved ({e.strerror})."
            ) from None
        except ConnectionRefusedError:
            raise UnreachableError(
                f"Nothing listens at the store's address {where}: the process that hosts it is gone. "
                "The next quorum names another."
            ) from None
        except OSError as e:
            raise UnreachableError(f"The store at {where} can't be reached: {e.strerror or e}.") from None

    def _connect(self, timeout: float) -> dist.TCPStore:
        host, port = self.address.host, self.address.port
        before = self._before = sockets.socket_inodes()
        try:
            tcp = dist.TCPStore(host, port, None, False, timeout=timedelta(seconds=timeout), wait_for_workers=False)
            self._found = sockets.find_new(before, port)
        except (RuntimeError, ValueError) as e:
            first = (str(e).splitlines() or [type(e).__name__])[0]
            raise UnreachableError(f"The store at {self.address.target} did not answer: {first}") from None
        finally:
            self._before = None
        return tcp


class KeyedClient(StoreClient):
    """Client of a store of ours."""

    def __init__(self, address: KeyedAddress) -> None:
        super().__init__(address)
        self._key = bytes.fromhex(address.key)
        self._socket: socket.socket | None = None  # connecting or connected
        self._connection: Connection | Inside | None = None
        self._meeting: MeetingStore | None = None  # the whole store, once connected

    @property
    def usable(self) -> bool:
        return self._meeting is not None and not self._is_shut

    def open(self, timeout: float) -> dist.Store:
        if self._is_shut:
            raise UnreachableError(f"The client of the store at {self.address.target} was shut.")
        if self._meeting is None or self._connection is None or not self._connection.is_open:
            where = Address(self.address.host, self.address.port)
            server = _here.get(self._key)
            if server is not None and server.pid == os.getpid() and not server.is_closed:
                self._connection = Inside(server, where.target, timeout)
            else:
                self._connection = Connection(where, self._key, timeout, self._use)
            if self._is_shut:  # `shut` came during the connect
                self._connection.shut()
            self._meeting = MeetingStore(self._connection)
        self._connection.timeout = timeout
        return self._meeting

    def shut(self) -> None:
        self._is_shut = True
        sock = self._socket
        if sock is not None:
            shut(sock)
        if self._connection is not None:
            self._connection.shut()

    def _use(self, sock: socket.socket) -> None:
        self._socket = sock
        if self._is_shut:  # `shut` came before the connect
            raise OSError("the client was shut")


_here: WeakValueDictionary[bytes, StoreServer] = WeakValueDictionary()  # stores that this process serves, by key
# Torch keeps only the C++ half of a store. These are kept for the process groups that were created with them.
_kept: deque[MeetingStore] = deque(maxlen=_KEPT)


def client_of(address: Address | KeyedAddress) -> StoreClient:
    """Return a client for the store at `address`, not yet connected."""
    return KeyedClient(address) if isinstance(address, KeyedAddress) else StoreClient(address)


def _answers(store: dist.Store) -> bool:
    try:
        store.check(["torchft_x"])  # a round trip, about 50 us; the key doesn't matter
    except RuntimeError:
        return False
    return True
