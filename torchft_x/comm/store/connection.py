"""Connections to a store: to a meeting store of ours (`comm.store.server`), or to torch's own, a TCPStore.

Torch's serves everybody; users and torchft bring it.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

from torchft_x import tls
from torchft_x.comm.store import wire
from torchft_x.descriptors import close, not_inherited, shut
from torchft_x.errors import AddressError, UnreachableError, first_line
from torchft_x.net import Address

_POLL = 0.002  # seconds between two requests for keys that are awaited
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


class TorchConnection:
    """Replacement for a `Connection` if the store is torch's. Its methods are those of `Connection`.

    Keys are asked for again and again instead of awaited: a waiting call of torch's client blocks every other caller
    of it, and no other thread could end it. A host that is stopped blocks a call until it goes on or is gone.

    torch's connect takes 6 s to detect a closed port, so a plain socket tries first. Both sides then look up the
    other's host name by its address: 5 s if the name server is slow, in which the store serves nobody.
    """

    def __init__(self, address: Address, timeout: float, seen: Callable[..., None]) -> None:
        self.where = address.target
        self.timeout = timeout  # seconds that a call may take
        self._is_shut = False  # set for good by `shut`
        deadline = time.monotonic() + timeout
        close(connect_socket(address, deadline, seen))
        limit = timedelta(seconds=max(deadline - time.monotonic(), 0.001))
        try:
            self._tcp = dist.TCPStore(*address, None, False, timeout=limit, wait_for_workers=False)
        except (RuntimeError, ValueError) as e:
            raise UnreachableError(f"The store at {self.where} did not answer: {first_line(e)}") from None

    @property
    def is_open(self) -> bool:
        try:
            self._tcp.check(["torchft_x"])  # a round trip, about 50 us; the key doesn't matter
        except RuntimeError:
            return False
        return not self._is_shut

    def shut(self) -> None:
        self._is_shut = True

    def send(self, number: int, fields: Sequence[bytes]) -> None:
        self.ask(number, fields)

    def ask(self, number: int, fields: Sequence[bytes], seconds: float | None = None) -> list[bytes] | None:
        self._check_open()
        if number == wire.GET:
            return self._await([key.decode() for key in fields[1:]], int(fields[0]) / 1000)
        if number == wire.COUNT:
            return [str(self._tcp.num_keys()).encode()]
        key, values = fields[0].decode(), fields[1:]
        if number == wire.SET:
            self._tcp.set(key, values[0])
        elif number == wire.APPEND:
            self._tcp.append(key, values[0])
        elif number == wire.COMPARE_SET:
            return [self._tcp.compare_set(key, *values)]
        elif number == wire.ADD:
            return [str(self._tcp.add(key, int(values[0]))).encode()]
        elif number == wire.CHECK:
            return [b"1" if self._tcp.check([key.decode() for key in fields]) else b""]
        else:  # DELETE
            deleted = [self._tcp.delete_key(key.decode()) for key in fields]
            return [b"1" if all(deleted) else b""]
        return None

    def _await(self, keys: list[str], seconds: float) -> list[bytes] | None:
        deadline = time.monotonic() + seconds
        while not self._tcp.check(keys):
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL)
            self._check_open()
        return [self._tcp.get(key) for key in keys]

    def _check_open(self) -> None:
        if self._is_shut:
            raise dist.DistNetworkError(f"The store at {self.where} is lost: it was shut")


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
