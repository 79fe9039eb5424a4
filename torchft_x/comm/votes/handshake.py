"""Accepts connections of members: a caller first sends its rank and the listener's secret."""

from __future__ import annotations

import errno
import hmac
import selectors
import socket
import struct
from collections.abc import Callable

from torchft_x.descriptors import not_inherited

_HELLO = struct.Struct("!8s16sI")  # first message: the name below, the listener's secret, the caller's rank
_NAME = b"tfx vote"
SECRET_BYTES = 16
_MAX_STRANGERS = 64  # connections without a complete first message; with more, the oldest is closed


def introduction(secret: bytes, rank: int) -> bytes:
    """Return the first message of a connection to the listener that has this secret."""
    return _HELLO.pack(_NAME, secret, rank)


class Acceptor:
    """Acceptor of connections at a non-blocking listener. Identifies callers, and on exit closes the unidentified.

    Args:
        secret: our secret, which members read in the store.
        keep, drop: take over a new socket; close one.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        keep: Callable[[socket.socket], object],
        drop: Callable[[socket.socket], None],
    ) -> None:
        self._listener, self._secret, self._keep, self._drop = listener, secret, keep, drop
        self._strangers: dict[socket.socket, bytes] = {}  # unidentified, oldest first; bytes received
        self._ready = selectors.DefaultSelector()

    def __enter__(self) -> Acceptor:
        self._ready.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *exc: object) -> None:
        self._ready.close()
        for sock in self._strangers:
            self._drop(sock)
        self._strangers = {}

    def members(self, seconds: float) -> list[tuple[int, socket.socket]]:
        """Wait up to `seconds` for callers. Return (claimed rank, non-blocking socket) of each identified, if any."""
        found: list[tuple[int, socket.socket]] = []
        for key, _ in self._ready.select(seconds):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock is self._listener:
                self._admit()
            elif sock in self._strangers:  # otherwise it was closed a moment ago
                self._listen_to(sock, found)
        return found

    def _admit(self) -> None:
        try:
            sock = not_inherited(self._listener.accept()[0])
        except (BlockingIOError, ConnectionError):
            return
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            return  # the listener was shut down; the caller's next check of its own state reports why
        if len(self._strangers) == _MAX_STRANGERS:  # a member sends its first message at once
            self._dismiss(next(iter(self._strangers)))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._keep(sock)
        self._strangers[sock] = b""
        self._ready.register(sock, selectors.EVENT_READ)

    def _listen_to(self, sock: socket.socket, found: list[tuple[int, socket.socket]]) -> None:
        """Read from a caller. Add it to `found` once identified, and close it if its message is wrong."""
        try:
            got = sock.recv(_HELLO.size - len(self._strangers[sock]))
        except BlockingIOError:
            return
        except OSError:
            got = b""
        said = self._strangers[sock] = self._strangers[sock] + got
        if got and len(said) < _HELLO.size:
            return
        name, secret, rank = _HELLO.unpack(said) if got else (b"", b"", 0)
        if name != _NAME or not hmac.compare_digest(secret, self._secret):
            self._dismiss(sock)
            return
        self._ready.unregister(sock)
        del self._strangers[sock]
        found.append((int(rank), sock))

    def _dismiss(self, sock: socket.socket) -> None:
        self._ready.unregister(sock)
        del self._strangers[sock]
        self._drop(sock)
