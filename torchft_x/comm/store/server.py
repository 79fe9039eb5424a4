"""The store where process groups of several replica groups meet.

A client must first prove that it knows the store's key. The serving process draws the key, and the key is part of the
address in the quorum, which nobody can read without the run's token. One thread serves all clients, within limits: an
unknown client costs a connection until its proof fails or is late.
"""

from __future__ import annotations

import hmac
import itertools
import logging
import resource
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable

from torchft_x import tls
from torchft_x.comm.store import wire
from torchft_x.comm.store.table import Table
from torchft_x.descriptors import close, not_inherited, shut
from torchft_x.timing import PATIENCE, POLL_FAST

log = logging.getLogger(__name__)

MAX_STRANGERS = 64
"""Connections that have not proved that they know the key. With more, the oldest is closed."""
_MOST = 16384  # connections, if the process may open that many files
_CHUNK = 1 << 16
_WRITES = (wire.SET, wire.APPEND, wire.COMPARE_SET, wire.ADD)


_ACTIONS: dict[int, tuple[range, Callable[[Table, list[bytes]], list[bytes] | None]]] = {
    wire.SET: (range(2, 3), lambda t, f: t.set(*f)),
    wire.APPEND: (range(2, 3), lambda t, f: t.append(*f)),
    wire.COMPARE_SET: (range(3, 4), lambda t, f: [t.compare_set(*f)]),
    wire.ADD: (range(2, 3), lambda t, f: [t.add(*f)]),
    wire.CHECK: (range(1, wire.MAX_FIELDS), lambda t, f: [b"1" if all(t.get(k) is not None for k in f) else b""]),
    wire.DELETE: (range(1, wire.MAX_FIELDS), lambda t, f: [b"1" if sum(map(t.delete, f)) else b""]),
    wire.COUNT: (range(1), lambda t, f: [str(len(t)).encode()]),
}
"""For each operation the permitted numbers of fields, and its function, which returns None for no answer."""


class _Caller:
    """One client's connection."""

    def __init__(self, sock: socket.socket, now: float) -> None:
        self.sock = sock
        self.since = now
        self.nonces: tuple[bytes, bytes] | None = None  # the client's nonce and ours, once it has sent its hello
        self.is_known = False  # whether it has proved that it knows the key
        self.received = bytearray()  # received bytes, not yet parsed
        self.answer = bytearray()  # bytes not yet sent
        self.waits: tuple[float, list[bytes]] | None = None  # deadline and keys of its pending GET


class StoreServer:
    """Meeting store that serves on a listener until `close`. It owns the listener and closes it."""

    def __init__(self, listener: socket.socket) -> None:
        self.key = secrets.token_bytes(16)
        self._listener = listener
        self._table = Table()
        self._lock = threading.Lock()  # guards the table
        self._callers: dict[socket.socket, _Caller] = {}  # all connections
        self._strangers: dict[socket.socket, _Caller] = {}  # connections without a proof, the oldest first
        self._waiting: set[_Caller] = set()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = _MOST if limit == resource.RLIM_INFINITY else min(_MOST, limit - limit // 4)
        self._ready = selectors.DefaultSelector()
        listener.setblocking(False)
        self._ready.register(listener, selectors.EVENT_READ)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="torchft_x store", daemon=True)
        self._thread.start()

    def keys(self) -> list[str]:
        with self._lock:
            return [key.decode("utf-8", "replace") for key in self._table]

    def delete_below(self, prefix: str) -> None:
        """Delete all keys that begin with `prefix`."""
        with self._lock:
            self._table.delete_below(prefix.encode())

    def close(self) -> None:
        """Close every connection, and the listener. May be called again."""
        if not self._closed:
            self._closed = True
            shut(self._listener)  # wakes the thread
            if threading.current_thread() is not self._thread:
                self._thread.join(PATIENCE)

    # --- the serving thread -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._closed:
                for key, events in self._ready.select(self._pause()):
                    if key.fileobj is self._listener and not self._closed:
                        self._admit()
                    elif isinstance(key.fileobj, socket.socket):
                        client = self._callers.get(key.fileobj)
                        if client is not None:
                            self._attend(client, events)
                self._expire()
        finally:
            for sock in [self._listener, *self._callers]:
                close(sock)
            self._ready.close()

    def _pause(self) -> float | None:
        """Return the seconds until the next deadline of a client, or None if there is none."""
        ends = [c.waits[0] for c in self._waiting if c.waits is not None]
        ends += [c.since + PATIENCE for c in itertools.islice(self._strangers.values(), 1)]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _expire(self) -> None:
        now = time.monotonic()
        for client in [c for c in self._waiting if c.waits is not None and c.waits[0] <= now]:
            self._waiting.discard(client)
            client.waits = None
            self._say(client, wire.TOO_LATE, [])
            self._understand(client)
        for client in [c for c in self._strangers.values() if now > c.since + PATIENCE]:
            self._drop(client)

    def _admit(self) -> None:
        try:
            sock = not_inherited(tls.server(self._listener.accept()[0]))
        except (BlockingIOError, ConnectionError):  # the client has gone again
            return
        except OSError as e:  # no descriptor is free
            log.warning("a caller of the store must wait: %s", e)
            self._make_room()
            time.sleep(POLL_FAST)
            return
        if len(self._strangers) >= MAX_STRANGERS:
            self._make_room()
        if len(self._callers) >= self._most:
            log.warning("a caller of the store is turned away: %d are connected", len(self._callers))
            close(sock)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._callers[sock] = self._strangers[sock] = _Caller(sock, time.monotonic())
        self._ready.register(sock, selectors.EVENT_READ)

    def _make_room(self) -> None:
        for client in list(itertools.islice(self._strangers.values(), 1)):
            self._drop(client)

    def _drop(self, client: _Caller) -> None:
        if self._callers.pop(client.sock, None) is not None:
            self._strangers.pop(client.sock, None)
            self._waiting.discard(client)
            self._ready.unregister(client.sock)
            close(client.sock)

    def _attend(self, client: _Caller, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._send(client)
            more = bool(events & selectors.EVENT_READ)
            while more:
                data = client.sock.recv(_CHUNK if client.is_known else wire.HELLO + wire.PROOF)
                if not data:
                    return self._drop(client)
                client.received += data
                if len(client.received) > wire.MAX_REQUEST + _CHUNK:  # it keeps sending while it waits for an answer
                    return self._drop(client)
                self._understand(client)
                more = client.sock in self._callers and tls.has_more(client.sock)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)

    def _send(self, client: _Caller) -> None:
        if client.answer:
            try:
                del client.answer[: client.sock.send(client.answer)]
            except BlockingIOError:
                pass
        want = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.answer else 0)
        if self._ready.get_key(client.sock).events != want:
            self._ready.modify(client.sock, want)

    def _say(self, client: _Caller, status: int, fields: list[bytes]) -> None:
        if client.sock not in self._callers:
            return
        client.answer += wire.pack(status, fields)
        if len(client.answer) > wire.MAX_ANSWER:
            return self._drop(client)
        try:
            self._send(client)
        except OSError:
            self._drop(client)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _understand(self, client: _Caller) -> None:
        """Carry out all complete requests of a client. An invalid request ends its connection."""
        try:
            if not client.is_known and not self._recognise(client):
                return
            while client.waits is None and client.sock in self._callers:
                length = wire.length_of(client.received)
                if length is not None and length > wire.MAX_REQUEST:
                    raise ValueError(f"a request of {length} bytes")
                if length is None or len(client.received) < length:
                    return
                frame = bytes(client.received[:length])
                del client.received[:length]
                self._do(client, *wire.unpack(frame))
        except (ValueError, OverflowError) as e:
            if client.is_known:
                log.warning("a caller of the store is dismissed: %s", e)
            self._drop(client)

    def _recognise(self, client: _Caller) -> bool:
        """Check a client's hello and proof, and return whether it is complete. Raises ValueError if it is wrong."""
        received = client.received
        if client.nonces is None:
            if len(received) < wire.HELLO:
                return False
            if received[: len(wire.NAME)] != wire.NAME:
                raise ValueError
            client.nonces = bytes(received[len(wire.NAME) : wire.HELLO]), secrets.token_bytes(wire.NONCE)
            del received[: wire.HELLO]
            client.answer += client.nonces[1] + wire.proof(self.key, b"server", *client.nonces)
            self._send(client)
        if len(received) < wire.PROOF:
            return False
        if not hmac.compare_digest(bytes(received[: wire.PROOF]), wire.proof(self.key, b"client", *client.nonces)):
            raise ValueError
        del received[: wire.PROOF]
        client.is_known = True
        self._strangers.pop(client.sock, None)
        return True

    def _do(self, client: _Caller, number: int, fields: list[bytes]) -> None:
        if number == wire.GET:
            self._wait(client, fields)
            return
        action = _ACTIONS.get(number)
        if action is None or len(fields) not in action[0]:
            raise ValueError(f"operation {number} with {len(fields)} fields")
        with self._lock:
            answer = action[1](self._table, fields)
        if answer is not None:
            self._say(client, wire.DONE, answer)
        if number in _WRITES and self._waiting:
            self._tell(fields[0])

    def _wait(self, client: _Caller, fields: list[bytes]) -> None:
        if not fields or len(fields[0]) > 12:
            raise ValueError("a wait without its time")
        seconds = min(max(int(fields[0]), 0), 1 << 31) / 1000
        client.waits = (time.monotonic() + seconds, fields[1:])
        self._waiting.add(client)
        self._look(client)

    def _look(self, client: _Caller) -> None:
        """Answer a client if all keys it waits for have come."""
        assert client.waits is not None, "it waits"
        values = [self._table.get(key) for key in client.waits[1]]
        if None not in values:
            client.waits = None
            self._waiting.discard(client)
            self._say(client, wire.DONE, [v for v in values if v is not None])

    def _tell(self, key: bytes) -> None:
        """Wake the clients that wait for this key."""
        for client in [c for c in self._waiting if c.waits is not None and key in c.waits[1]]:
            self._look(client)
            if client.waits is None:
                self._understand(client)
