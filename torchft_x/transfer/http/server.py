"""Serves snapshots over HTTP. `wire` describes the protocol.

There is one thread per connection. A connection that got bytes of a snapshot holds it until it closes, so a reader in
progress needs no lease and no "done" message.
"""

from __future__ import annotations

import hmac
import logging
import re
import socket
import threading
import zlib
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from torchft_x import net, tls
from torchft_x.core.types import State
from torchft_x.descriptors import close, not_inherited, shut
from torchft_x.errors import ConfigError
from torchft_x.transfer.format.limits import ALIGNMENT, MAX_CONNECTIONS, MAX_HEAD_BYTES, MAX_REASON_BYTES
from torchft_x.transfer.http.wire import DIGEST_BYTES, HOLD
from torchft_x.transfer.snapshot import Refusal, Snapshot, SnapshotStore

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 30.0  # seconds that a connection may be idle before a request is complete
_CHECKPOINT = re.compile(r"/checkpoint/(\d{1,19})/(\d{1,19})")
_HELD = re.compile(r"/snapshot/([0-9a-f]{16})/held")
_DIGESTS = re.compile(r"/snapshot/([0-9a-f]{16})/digests")
_BLOCKS = re.compile(r"/snapshot/([0-9a-f]{16})/(\d{1,9})/(\d{1,9})")


class CheckpointServer:
    """HTTP server for snapshots. Listens on every interface, on a free port, from construction until `close`."""

    def __init__(self, store: SnapshotStore, *, token: str | None, stall_timeout: float) -> None:
        self.store = store
        self.token = token  # None: anybody may read
        self.stall_timeout = stall_timeout  # seconds without progress after which a reader is cut off
        self._lock = threading.Lock()  # guards _connections
        self._connections: dict[socket.socket, bool] = {}  # oldest first; whether it has shown the token
        self._listener = _listen()
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="checkpoint-accept", daemon=True)
        self._thread.start()

    def close(self, wait: float) -> None:
        """Let readers in progress finish for up to `wait` seconds, then close every connection and free the port."""
        self.store.close(wait)
        close(self._listener)  # wakes accept()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            shut(connection)
        self._thread.join(1.0)

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
                connection = not_inherited(tls.server(connection, tensors=True))
            except ConnectionError:  # the reader has gone again
                continue
            except OSError:
                return
            if not self._admit(connection):
                log.warning("a reader from %s is turned away: %d connections are open", address[0], MAX_CONNECTIONS)
                close(connection)
                continue
            threading.Thread(
                target=self._serve, args=(connection, address), name="checkpoint-reader", daemon=True
            ).start()

    def _admit(self, connection: socket.socket) -> bool:
        """Register a new connection, and return whether there is room for it.

        At the limit of connections, the oldest one that has not shown the token is closed, so that a client
        without the token can't keep others out.
        """
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                idle = next((c for c, authorized in self._connections.items() if not authorized), None)
                if idle is None:
                    return False
                del self._connections[idle]
                shut(idle)
            self._connections[connection] = False
            return True

    def authorized(self, connection: socket.socket) -> None:
        with self._lock:
            if connection in self._connections:
                self._connections[connection] = True

    def _serve(self, connection: socket.socket, address: Any) -> None:
        try:
            _Handler(connection, address, self)  # type: ignore[arg-type]  # it needs no socketserver, only a context
        except OSError as e:
            log.debug("reader %s: %s", address[0], e)
        except Exception:
            log.exception("serving a checkpoint to %s failed", address[0])
        finally:
            with self._lock:
                self._connections.pop(connection, None)
            close(connection)


def _listen() -> socket.socket:
    host = net.any_host()
    listener = not_inherited(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM))
    try:
        if ":" in host:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Connections inherit this option: those that linger after `close` must not keep the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, 0))
        listener.listen(128)
    except OSError as e:
        listener.close()
        raise ConfigError(f"the checkpoint server can't listen on {host} ({e.strerror}).") from None
    return listener


def _bytes_follow(length: int) -> memoryview:
    return _head({"Content-Type": "application/octet-stream", "Content-Length": str(length)})


def _head(headers: dict[str, str], *, behind: int = 0) -> memoryview:
    """Return the head of a successful answer, padded so that the body is aligned in the socket as in memory.

    The bytes after the head, and after `behind` more, then begin a cache line. Copies between unequal alignments take
    half as long again (decision 37).
    """
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 200 OK\r\n{lines}X-Pad: {{}}\r\n\r\n"
    return memoryview(head.format("0" * (1 + -(len(head) - 1 + behind) % ALIGNMENT)).encode())


class _Head:
    """Limited reader of a request head's lines. The standard library would read 100 of 64 KB each before the token."""

    def __init__(self, file: Any) -> None:
        self._file = file  # the connection's file
        self.left = MAX_HEAD_BYTES  # bytes that this request's head may still have

    def readline(self, limit: int) -> bytes:
        """Read a line. Raises `ConnectionAbortedError` if the head is too long."""
        line: bytes = self._file.readline(min(limit, self.left + 1))
        self.left -= len(line)
        if self.left < 0:
            raise ConnectionAbortedError(f"a request's head has more than {MAX_HEAD_BYTES} bytes")
        return line

    def close(self) -> None:
        self._file.close()


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection, which may send any number of requests."""

    protocol_version = "HTTP/1.1"
    server_version = "torchft_x"
    sys_version = ""
    timeout = REQUEST_TIMEOUT
    disable_nagle_algorithm = True
    server: CheckpointServer  # type: ignore[assignment]

    def setup(self) -> None:
        super().setup()
        self.rfile: _Head = _Head(self.rfile)  # type: ignore[assignment]  # only heads of requests are read
        self.held: list[tuple[Snapshot, bool]] = []  # snapshots this connection holds, and whether it began them
        self.streaming = False  # whether an answer is half sent

    def handle_one_request(self) -> None:
        self.rfile.left = MAX_HEAD_BYTES
        super().handle_one_request()

    def finish(self) -> None:
        for snapshot, began in self.held:
            self.server.store.release(snapshot, cut=self.streaming, began=began)
        super().finish()

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            pass  # the reader is gone; `finish` knows whether it was in the middle

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("reader %s: " + format, self.client_address[0], *args)

    def do_GET(self) -> None:
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # otherwise the body would be read as the next request
            return self._refuse(HTTPStatus.BAD_REQUEST, "a request has no body here")
        if not self._authorized():
            return self._refuse(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
        self.server.authorized(self.connection)
        self.server.store.moved()
        if match := _CHECKPOINT.fullmatch(self.path):
            return self._send_manifest(State(int(match[1]), int(match[2])))
        if match := _BLOCKS.fullmatch(self.path):
            return self._send_blocks(match[1], int(match[2]), int(match[3]))
        if match := _DIGESTS.fullmatch(self.path):
            return self._send_digests(match[1])
        if match := _HELD.fullmatch(self.path):
            return self._confirm(match[1])
        self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this path")

    def _authorized(self) -> bool:
        if self.server.token is None:
            return True
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {self.server.token}".encode())

    def _send_manifest(self, state: State) -> None:
        try:
            wait = min(max(float(self.headers.get("X-Wait", "0")), 0.0), HOLD)
        except ValueError:
            wait = 0.0
        answer = self.server.store.ask(state, wait)
        if isinstance(answer, Refusal):
            status = HTTPStatus.CONFLICT if answer.final else HTTPStatus.SERVICE_UNAVAILABLE
            return self._refuse(status, answer.reason)
        self.held.append((answer, True))
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(answer.manifest)),
            "X-Snapshot": answer.id,
            "X-Crc32": str(zlib.crc32(answer.manifest)),
        }
        if answer.memory.name is not None:
            headers["X-Memory"] = answer.memory.name
        self.streaming = True
        self._send([_head(headers, behind=len(answer.manifest)), memoryview(answer.manifest)])
        self._done()

    def _confirm(self, snapshot_id: str) -> None:
        """Confirm to a reader of the snapshot's memory that the memory has not been reused meanwhile."""
        if not any(s.id == snapshot_id and not s.revoked for s, _ in self.held):
            return self._refuse(HTTPStatus.GONE, "this snapshot is gone; ask for the state again")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _hold(self, snapshot_id: str) -> Snapshot | None:
        """Return the snapshot, held by this connection from now on, or None, after a refusal, if it is gone."""
        snapshot = next((s for s, _ in self.held if s.id == snapshot_id), None)
        if snapshot is None:
            snapshot = self.server.store.resume(snapshot_id)
            if snapshot is None:
                self._refuse(HTTPStatus.GONE, "this snapshot is gone; ask for the state again")
                return None
            self.held.append((snapshot, False))
        return snapshot

    def _send_digests(self, snapshot_id: str) -> None:
        snapshot = self._hold(snapshot_id)
        if snapshot is None:
            return
        self.streaming = True
        self._send([_bytes_follow(4 * len(snapshot.blocks))])
        for first in range(0, len(snapshot.blocks), 64):  # 64 at a time, so that the reader sees progress
            if snapshot.revoked:
                raise ConnectionAbortedError("the snapshot was given up for newer ones")
            indices = range(first, min(first + 64, len(snapshot.blocks)))
            self._send([memoryview(b"".join(snapshot.digest(i).to_bytes(4, "big") for i in indices))])
        self._done()

    def _send_blocks(self, snapshot_id: str, first: int, end: int) -> None:
        snapshot = self._hold(snapshot_id)
        if snapshot is None:
            return
        if not first < end <= len(snapshot.blocks):
            return self._refuse(HTTPStatus.NOT_FOUND, f"the snapshot has {len(snapshot.blocks)} blocks")
        blocks = snapshot.blocks[first:end]
        self.streaming = True
        parts = [_bytes_follow(sum(b.nbytes + DIGEST_BYTES for b in blocks))]
        for index in range(first, end):
            if snapshot.revoked:
                raise ConnectionAbortedError("the snapshot was given up for newer ones")
            # The digest is computed before sending, which brings the block into the cache.
            digest = memoryview(snapshot.digest(index).to_bytes(DIGEST_BYTES, "big"))
            self._send([*parts, snapshot.block(index), digest])
            parts = []
        self._done()

    def _send(self, parts: list[memoryview]) -> None:
        """Send all parts. The time-out is per system call, so a slow reader that makes progress is never cut off."""
        self.connection.settimeout(self.server.stall_timeout)
        while parts:
            sent = self.connection.sendmsg(parts)
            self.server.store.moved()
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]

    def _done(self) -> None:
        self.streaming = False
        self.connection.settimeout(REQUEST_TIMEOUT)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        body = reason.encode("utf-8")[:MAX_REASON_BYTES]
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
