"""A client of a meeting store (`comm.store.server`) that torch accepts as a store: its C++ calls these methods."""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from torchft_x import tls
from torchft_x.comm.store import wire
from torchft_x.comm.store.server import StoreServer
from torchft_x.comm.store.table import Full
from torchft_x.descriptors import close, not_inherited, shut
from torchft_x.errors import AddressError, UnreachableError
from torchft_x.net import Address
from torchft_x.timing import TIMING

_CHUNK = 1 << 16


class Connection:
    """Connection to a meeting store. It serialises calls; `shut` ends a blocked one from any thread.

    `seen` is called with the socket before it connects, so that another thread can end the connect, too.

    Raises `UnreachableError`, `AddressError`; a call raises `DistNetworkError` if the connection is lost.
    """

    def __init__(
        self, address: Address, key: bytes, timeout: float, seen: Callable[[socket.socket], None] = lambda sock: None
    ) -> None:
        self.where = address.target
        self.timeout = timeout  # seconds that a call may take
        self._lock = threading.Lock()  # one call at a time
        self._read = bytearray()  # received bytes of an incomplete answer
        deadline = time.monotonic() + timeout
        self._sock = connect_socket(address, deadline, seen, tls.client)
        try:
            self._prove(key, deadline)
        except OSError as e:
            close(self._sock)
            raise UnreachableError(f"The store at {self.where} did not answer: {e or type(e).__name__}.") from None

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed the connection, as far as is known on this side."""
        poller = select.poll()  # a `recv` would block until its timeout
        poller.register(self._sock, select.POLLIN)
        return not poller.poll(0)  # the server sends nothing unasked, so readable means closed

    def shut(self) -> None:
        """End the connection for good; a caller that is blocked in a call raises."""
        shut(self._sock)

    def send(self, number: int, fields: Sequence[bytes]) -> None:
        """Send a request that has no answer."""
        with self._lock:
            try:
                self._send(wire.pack(number, fields), time.monotonic() + self.timeout)
            except (OSError, ValueError) as e:
                raise self._lost(e) from None

    def ask(self, number: int, fields: Sequence[bytes], seconds: float | None = None) -> list[bytes] | None:
        """Send a request and return the answer's fields; None if the keys it waited for did not come in time."""
        with self._lock:
            deadline = time.monotonic() + (self.timeout if seconds is None else seconds)
            try:
                self._send(wire.pack(number, fields), deadline)
                length = wire.length_of(self._receive(4, deadline))
                assert length is not None, "four bytes tell it"
                if length > wire.MAX_ANSWER:
                    raise ConnectionError(f"an answer of {length} bytes")
                status, answer = wire.unpack((length - 4).to_bytes(4, "big") + self._receive(length - 4, deadline))
            except (OSError, ValueError) as e:
                raise self._lost(e) from None
        return answer if status == wire.DONE else None

    def _prove(self, key: bytes, deadline: float) -> None:
        """Prove to the server that we know the key, and check its proof. Raises OSError."""
        mine = secrets.token_bytes(wire.NONCE)
        self._sock.sendall(wire.NAME + mine)
        theirs = self._receive(wire.NONCE + wire.PROOF, deadline)
        nonces = mine, theirs[: wire.NONCE]
        if not hmac.compare_digest(theirs[wire.NONCE :], wire.proof(key, b"server", *nonces)):
            raise ConnectionError("it is another store than the address names")
        self._sock.sendall(wire.proof(key, b"client", *nonces))

    def _lost(self, cause: Exception) -> Exception:
        """Shut the connection, in which requests and answers no longer match, and return the error to raise."""
        self.shut()
        return dist.DistNetworkError(f"The store at {self.where} is lost: {cause or type(cause).__name__}")

    def _send(self, data: bytes, deadline: float) -> None:
        if len(data) > wire.MAX_REQUEST:
            raise ValueError(f"a request of {len(data)} bytes, at most {wire.MAX_REQUEST} are taken")
        self._sock.settimeout(max(deadline - time.monotonic(), 0.001))
        self._sock.sendall(data)

    def _receive(self, size: int, deadline: float) -> bytes:
        while len(self._read) < size:
            self._sock.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self._sock.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("it has hung up")
            self._read += data
        got = bytes(self._read[:size])
        del self._read[:size]
        return got


class Inside:
    """Replacement for a `Connection` if this process serves the store itself."""

    def __init__(self, server: StoreServer, where: str, timeout: float) -> None:
        self.where = where
        self.timeout = timeout
        self._server = server
        self._is_shut = False

    @property
    def is_open(self) -> bool:
        return not (self._is_shut or self._server.is_closed)

    def shut(self) -> None:
        self._is_shut = True
        self._server.nudge()

    def send(self, number: int, fields: Sequence[bytes]) -> None:
        self.ask(number, fields)

    def ask(self, number: int, fields: Sequence[bytes], seconds: float | None = None) -> list[bytes] | None:
        found: list[bytes] | None = None
        if self.is_open:
            if number != wire.GET:
                return self._do(number, fields)
            found = self._server.await_values(list(fields[1:]), int(fields[0]) / 1000, lambda: self._is_shut)
        if not self.is_open:
            raise dist.DistNetworkError(f"The store at {self.where} is lost: it was shut")
        return found

    def _do(self, number: int, fields: Sequence[bytes]) -> list[bytes] | None:
        try:
            return self._server.do(number, list(fields))
        except (Full, ValueError) as e:
            raise dist.DistNetworkError(f"The store at {self.where} refuses: {e or 'it is full'}") from None


class AnyConnection(Protocol):
    """What `MeetingStore` needs of a `Connection` and of its replacements."""

    where: str
    timeout: float

    @property
    def is_open(self) -> bool: ...

    def shut(self) -> None: ...

    def send(self, number: int, fields: Sequence[bytes]) -> None: ...

    def ask(self, number: int, fields: Sequence[bytes], seconds: float | None = None) -> list[bytes] | None: ...


class MeetingStore(dist.Store):
    """A connection's keys below a prefix, as a torch store. torch's C++ calls some methods by their C++ names.

    torch keeps only the C++ half of this object, so the caller must keep the object as long as a process group may
    use it.

    Methods raise `DistNetworkError` if the connection is lost, and `DistStoreError` for a key that doesn't come in
    time (both are RuntimeErrors).
    """

    def __init__(self, connection: AnyConnection, prefix: str = "") -> None:
        super().__init__()
        self._connection = connection
        self._prefix = f"{prefix}/" if prefix else ""
        self._ahead: dict[str, bytes] = {}  # values that the last `wait` brought: gloo gets each key right after it

    def __repr__(self) -> str:
        return f"MeetingStore({self._connection.where}/{self._prefix})"

    def under(self, prefix: str) -> MeetingStore:
        """Return the store of the keys below this prefix, on the same connection; this store if it is empty."""
        return MeetingStore(self._connection, self._prefix + prefix) if prefix else self

    def value_within(self, key: str, seconds: float) -> bytes | None:
        """Wait at most `seconds` for a key, and return its value; None if it did not come."""
        found = self._await(wire.GET, [key], seconds)
        return None if found is None else found[0]

    def drop(self, keys: Sequence[str]) -> None:
        """Delete keys, without waiting for an answer."""
        self._connection.send(wire.DROP, self._keys(keys))

    def set(self, key: str, value: Any) -> None:
        self._ahead = {}
        self._connection.send(wire.SET, [self._key(key), _bytes(value)])

    def append(self, key: str, value: Any) -> None:
        self._connection.send(wire.APPEND, [self._key(key), _bytes(value)])

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        ahead, self._ahead = self._ahead, {}
        if all(key in ahead for key in keys):
            return [ahead[key] for key in keys]
        return self._in_time(keys, self._await(wire.GET, keys, self._connection.timeout))

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = self._connection.timeout if timeout is None else timeout.total_seconds()
        self._ahead = dict(zip(keys, self._in_time(keys, self._await(wire.GET, keys, seconds)), strict=True))

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask(wire.CHECK, self._keys(keys)) != b""

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(wire.ADD, [self._key(key), str(amount).encode()]))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return self._ask(wire.COMPARE_SET, [self._key(key), _bytes(expected), _bytes(desired)])

    def delete_key(self, key: str) -> bool:
        return self._ask(wire.DELETE, [self._key(key)]) != b""

    def num_keys(self) -> int:
        """Return the number of keys of the whole store, as torch's stores do."""
        return int(self._ask(wire.COUNT, []))

    deleteKey = delete_key
    getNumKeys = num_keys

    def set_timeout(self, timeout: timedelta) -> None:
        self._connection.timeout = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._connection.timeout)

    def clone(self) -> MeetingStore:
        return self  # calls are serialised anyway

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _keys(self, keys: Sequence[str]) -> list[bytes]:
        return [self._key(key) for key in keys]

    def _ask(self, number: int, fields: Sequence[bytes]) -> bytes:
        self._ahead = {}
        answer = self._connection.ask(number, fields)
        return answer[0] if answer else b""

    def _await(self, number: int, keys: Sequence[str], seconds: float) -> list[bytes] | None:
        millis = str(int(min(max(seconds, 0.001), 1e6) * 1000)).encode()
        return self._connection.ask(number, [millis, *self._keys(keys)], seconds + TIMING.late_store)

    def _in_time(self, keys: Sequence[str], found: list[bytes] | None) -> list[bytes]:
        if found is None:
            some = ", ".join(self._prefix + key for key in keys[:3])
            raise dist.DistStoreError(f"wait timeout: the store at {self._connection.where} has not got {some} in time")
        return found


def connect_socket(
    address: Address,
    deadline: float,
    seen: Callable[[socket.socket], None],
    wrap: Callable[[socket.socket], socket.socket] = lambda sock: sock,
) -> socket.socket:
    """Return a socket that is connected to a store. `seen` is called with it before. Raises as `Connection`."""
    where = address.target
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        sock = not_inherited(wrap(socket.socket(family, kind, protocol)))
        try:
            seen(sock)
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            sock.connect(target)
        except OSError:
            sock.close()
            raise
    except socket.gaierror as e:
        raise AddressError(f"store address {where}: {address.host!r} can't be resolved ({e.strerror}).") from None
    except ConnectionRefusedError:
        raise UnreachableError(
            f"Nothing listens at the store's address {where}: the process that hosts it is gone. "
            "The next quorum names another."
        ) from None
    except OSError as e:
        raise UnreachableError(f"The store at {where} can't be reached: {e.strerror or e}.") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
