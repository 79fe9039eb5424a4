"""The sockets of one end of a vote, and how members connect: a caller first sends its rank and the listener's secret."""

from __future__ import annotations

import errno
import hmac
import json
import secrets
import selectors
import socket
import struct
import threading
from collections.abc import Callable

from torchft_x import tls
from torchft_x.comm.store.create import listen
from torchft_x.descriptors import close, not_inherited, shut

_HELLO = struct.Struct("!8s16sI")  # first message: the name below, the listener's secret, the caller's rank
_NAME = b"tfx vote"
_SECRET_BYTES = 16
_MAX_STRANGERS = 64  # connections without a complete first message; with more, the oldest is closed


def introduction(secret: bytes, rank: int) -> bytes:
    """Return the first message of a connection to the listener that has this secret."""
    return _HELLO.pack(_NAME, secret, rank)


def read_contact(raw: bytes) -> tuple[tuple[str, int], bytes]:
    """Return a listener's address and secret. Raises ValueError, TypeError or KeyError if that is no contact."""
    said = json.loads(raw)
    return (str(said["host"]), int(said["port"])), bytes.fromhex(said["secret"])


class VoteEndpoint:
    """The sockets of one end of a vote, used by one thread at a time. `end` may be called from any thread."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(_SECRET_BYTES)  # proves that a caller has read our contact
        self._using = threading.Lock()  # held by the thread that uses the sockets; only its holder may close them
        self._lock = threading.Lock()  # guards `_open` and `_why`; never held while waiting
        self._why = ""  # why it has ended, as a clause; empty if it hasn't
        self._open: list[socket.socket] = []  # all open sockets
        self._listener: socket.socket | None = None  # set while connecting
        self._strangers: dict[socket.socket, bytes] = {}  # unidentified callers, oldest first; bytes received
        self._ready: selectors.BaseSelector  # set while accepting

    def end(self, why: str) -> None:
        """End the vote and release waiting callers, here and, by closed connections, in other members."""
        with self._lock:
            self._why = self._why or why
            for sock in self._open:
                shut(sock)

    def close(self) -> None:
        """End the vote, if it hasn't ended, and close the sockets once the thread that uses them has returned."""
        self.end("the group was shut down")
        with self._using, self._lock:
            for sock in self._open:
                close(sock)
            self._open, self._listener = [], None

    def _keep(self, sock: socket.socket) -> socket.socket:
        with self._lock:
            self._open.append(sock)
            if self._why:
                shut(sock)
        return sock

    def _drop(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.remove(sock)
        close(sock)

    def _listen(self, host: str, backlog: int) -> str:
        """Listen on a free port, and return the contact for the callers."""
        listener, shown = listen(host, 0, backlog=backlog)
        self._listener = self._keep(listener)
        listener.setblocking(False)
        return json.dumps({"host": shown, "port": listener.getsockname()[1], "secret": self._secret.hex()})

    def _accept(
        self,
        missing: set[int],
        links: dict[int, socket.socket],
        tick: float,
        check: Callable[[set[int]], None],
        unsent: dict[int, tuple[socket.socket, Callable[[], bool]]] | None = None,
    ) -> None:
        """Move the `missing` ranks to `links` as they connect, and close the listener when all have.

        Every `tick` seconds it calls ``check(missing)``, which raises to end this. `unsent` holds connections to ranks
        whose TLS handshake is not done, and functions that go on with it, send our first message and return whether it
        is sent. Two members that call each other would wait for ever if they did not accept meanwhile.
        """
        unsent = unsent or {}
        listener = self._listener
        assert listener is not None, "we listen"
        with selectors.DefaultSelector() as self._ready:
            for sock in (listener, *(sock for sock, _ in unsent.values())):
                self._ready.register(sock, selectors.EVENT_READ)
            try:
                while missing or unsent:
                    check(missing | unsent.keys())
                    for key, _ in self._ready.select(tick):
                        if key.fileobj is listener:
                            self._admit(listener)
                        elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._strangers:
                            self._identify(key.fileobj, missing, links)
                    for rank in [r for r, (_, send) in unsent.items() if send()]:
                        self._ready.unregister(unsent.pop(rank)[0])
            finally:
                while self._strangers:
                    self._dismiss(next(iter(self._strangers)))
        self._drop(listener)
        self._listener = None

    def _admit(self, listener: socket.socket) -> None:
        try:
            sock = not_inherited(tls.server(listener.accept()[0]))
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

    def _identify(self, sock: socket.socket, missing: set[int], links: dict[int, socket.socket]) -> None:
        """Read from a caller. Move it to `links` if it is a missing rank, and close it if its message is wrong."""
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
        if name != _NAME or not hmac.compare_digest(secret, self._secret) or rank not in missing:
            self._dismiss(sock)
            return
        self._ready.unregister(sock)
        del self._strangers[sock]
        missing.remove(rank)
        links[rank] = sock

    def _dismiss(self, sock: socket.socket) -> None:
        self._ready.unregister(sock)
        del self._strangers[sock]
        self._drop(sock)
