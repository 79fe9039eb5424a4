"""JSON messages, with file descriptors beside them, between a process and its own child over a Unix socket.

Not for networks: both ends are ours, created by ``socketpair`` and inherited. Even so, nothing is pickled.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

from torchft_x.descriptors import not_inherited, shut

_HEADER = struct.Struct("!I")  # bytes of the JSON that follows
_MAX_FDS = 4  # descriptors beside one message


class Pipe:
    """One end of a pipe. `send` may be called from any thread, `recv` from one thread only."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()  # one message at a time

    @staticmethod
    def pair() -> tuple[Pipe, Pipe]:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Pipe(not_inherited(near)), Pipe(not_inherited(far))

    def fileno(self) -> int:
        return self._sock.fileno()

    def limit_sends(self, timeout: float) -> None:
        """Make a `send` fail after `timeout` seconds if the other end doesn't read."""
        whole = int(timeout)
        value = struct.pack("@ll", whole, int((timeout - whole) * 1e6))
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
        except OSError:
            pass  # it is closed

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message. Raises `OSError` if the other end is closed or doesn't read."""
        body = json.dumps(message, separators=(",", ":")).encode()
        with self._lock:
            header = _HEADER.pack(len(body))
            sent = socket.send_fds(self._sock, [header], list(fds)) if fds else self._sock.send(header)
            self._sock.sendall(header[sent:] + body)

    def recv(self) -> tuple[Any, list[int]]:
        """Return the next message and its descriptors, which the caller owns. Raises `EOFError` at the end."""
        try:
            header, fds, _, _ = socket.recv_fds(self._sock, _HEADER.size, _MAX_FDS)
            header += self._exactly(_HEADER.size - len(header)) if header else b""
            if not header:
                raise EOFError
            return json.loads(self._exactly(_HEADER.unpack(header)[0])), fds
        except OSError:
            raise EOFError from None

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._sock.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def wait_readable(self, timeout: float) -> None:
        """Make `recv` give up (`EOFError`) after `timeout` seconds of silence."""
        self._sock.settimeout(timeout)

    def shut(self) -> None:
        """Shut down both directions for both ends, which also ends a call in progress. Safe from any thread."""
        shut(self._sock)

    def half_close(self) -> None:
        """Send nothing more: the other end reads the end. Its own messages can still be received."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        """Close the socket. Call `shut` first, or be sure that no other thread uses it."""
        with self._lock:  # a send in progress must not continue with a descriptor that was reused
            self._sock.close()


def close_all_but(kept: Sequence[int]) -> None:
    """Close every descriptor above standard error except `kept`; for a process that was just forked."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor of the listing itself
