"""A source of a state over HTTP: its connections, requests, refusals, retries. `wire` describes the protocol.

A broken connection is retried until the deadline. A refusal, or a connect that is refused several times, ends the
fetch: another try would change nothing.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from torchft_x import env, net, tls
from torchft_x.core.types import State
from torchft_x.descriptors import not_inherited, shut
from torchft_x.errors import AddressError, TokenError, TransferError
from torchft_x.transfer.format.limits import MAX_MANIFEST_BYTES, MAX_REASON_BYTES
from torchft_x.transfer.http.wire import HOLD

REFUSED_TRIES = 3  # refused connects in a row after which the source counts as gone
LAST_MOMENT = 0.02  # seconds before the deadline in which another request is useless
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds before the n-th try in a row
BROKEN = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Manifest:
    """Answer to the first request, and the connection that holds the snapshot while it is open."""

    text: bytes
    snapshot: str  # id of the snapshot
    memory: str  # where processes of the source's host find the snapshot's bytes; "" for nowhere
    connection: http.client.HTTPConnection


class Source:
    """A source of one fetch, and the connections to it. From any thread. The owner must `close` it.

    Args:
        deadline: monotonic time of the fetch's end.
    """

    def __init__(self, address: net.Address, token: str | None, deadline: float) -> None:
        self.address = address
        self.deadline = deadline
        self._token = token
        self._manifest: Manifest | None = None  # set by `ask`
        self._lock = threading.Lock()  # guards the fields below
        self._sockets: set[socket.socket] = set()  # shut down to wake the threads that read from them
        self._idle: list[http.client.HTTPConnection] = []
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Source {self.url}>"

    @staticmethod
    def parse(metadata: str, token: str | None, deadline: float) -> Source:
        """Return the source that another process's `metadata()` describes. Raises `TransferError` if malformed."""
        try:
            parts = urlsplit(metadata[:1000])
            if parts.scheme not in ("http", "https") or parts.path.rstrip("/") != "/checkpoint":
                raise AddressError("it is not of the form http://HOST:PORT/checkpoint/")
            if (parts.scheme == "https") != tls.is_on(tensors=True):
                here, there = ("without", "with") if parts.scheme == "https" else ("with", "without")
                raise AddressError(
                    f"it offers the state {there} TLS, and this process works {here} it; {env.TLS} must be equal"
                )
            address = net.parse_address(parts.netloc, what="checkpoint address")
        except ValueError as e:  # includes AddressError
            raise TransferError(f"checkpoint metadata {metadata[:200]!r} of the source is not usable: {e}") from None
        return Source(address, token, deadline)

    @property
    def url(self) -> str:
        return f"{'https' if tls.is_on(tensors=True) else 'http'}://{self.address.target}"

    @property
    def manifest(self) -> Manifest:
        assert self._manifest is not None, "the source was asked for the state first"
        return self._manifest

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def error(self, what: str) -> TransferError:
        return TransferError(f"fetching state from {self.url}: {what}")

    # --- connections --------------------------------------------------------------------------------------------------

    def connect(self) -> http.client.HTTPConnection:
        """Return an idle connection if there is one, otherwise a new one.

        Raises OSError, or `TransferError` at the deadline and after `stop`.
        """
        with self._lock:
            if self._idle:
                return self._idle.pop()
        left = self.left()
        if left <= 0:
            raise self.error("timed out, as its deadline is over.")
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=left)
        connection.connect()
        connection.sock = not_inherited(tls.client(connection.sock, tensors=True))
        try:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._stopped:
                    raise self.error("the fetch is over.")
                self._sockets.add(connection.sock)
        except BaseException:
            connection.close()
            raise
        return connection

    def put_back(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for reuse. Its last answer must have been read to the end."""
        with self._lock:
            self._idle.append(connection)

    def discard(self, connection: http.client.HTTPConnection) -> None:
        """Close a connection that can't be reused."""
        with self._lock:
            if connection.sock in self._sockets:
                self._sockets.remove(connection.sock)
                shut(connection.sock)
            if connection in self._idle:
                self._idle.remove(connection)
        connection.close()

    def stop(self) -> None:
        """Wake the threads that read from this source, with an error, and refuse new connections."""
        with self._lock:
            self._stopped = True
            sockets = list(self._sockets)
        for s in sockets:
            shut(s)

    def close(self) -> None:
        """Close all connections, which releases the snapshot at the source."""
        self.stop()
        with self._lock:
            for s in self._sockets:
                s.close()

    # --- requests -----------------------------------------------------------------------------------------------------

    def get(
        self, connection: http.client.HTTPConnection, path: str, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request and read the answer's head. Raises `TokenError`, or `TransferError` for a final refusal."""
        connection.sock.settimeout(max(self.left(), 0.001))
        authorization = {"Authorization": f"Bearer {self._token}"} if self._token is not None else {}
        connection.request("GET", path, headers={**authorization, **(headers or {})})
        response = connection.getresponse()
        if response.status == http.client.UNAUTHORIZED:
            raise TokenError(
                f"{self.url} refused our token for its checkpoint; both sides need the run's token "
                "(TORCHFT_X_TOKEN or TORCHFT_X_TOKEN_FILE)."
            )
        if response.status not in (http.client.OK, http.client.SERVICE_UNAVAILABLE):
            raise self.error(f"it refused ({response.status}): {_reason(response)}.")
        return response

    def ask(self, state: State) -> Manifest:
        """Ask until the source has the state, and return its manifest. Raises `TokenError` or `TransferError`."""
        retry = Retry(self)
        nothing = ""  # the source's last reason for having nothing
        while True:
            connection = None
            watchdog = None
            try:
                connection = self.connect()
                # A socket's own time-out is per call: a source that sends a byte now and then would outlast it.
                watchdog = threading.Timer(self.left(), shut, [connection.sock])
                watchdog.daemon = True
                watchdog.start()
                while True:
                    hold = min(HOLD, max(0.5 * self.left(), 0.0))  # its reason shall arrive before our own deadline
                    path = f"/checkpoint/{state.step}/{state.committed_in}"
                    response = self.get(connection, path, {"X-Wait": f"{hold:.3f}"})
                    retry.progress()
                    if response.status == http.client.OK:
                        self._manifest = self._read_manifest(response, connection)
                        self.put_back(connection)
                        connection = None  # stays open and holds the snapshot
                        return self._manifest
                    nothing = _reason(response)
                    if self.left() <= LAST_MOMENT:
                        raise self._had_nothing(nothing)
            except BROKEN as e:
                if nothing and self.left() <= LAST_MOMENT:
                    raise self._had_nothing(nothing) from None
                retry.broken(e)
            finally:
                if watchdog is not None:
                    watchdog.cancel()
                if connection is not None:
                    self.discard(connection)

    def _had_nothing(self, reason: str) -> TransferError:
        return self.error(f"it had nothing for us until the deadline: {reason}.")

    def _read_manifest(self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection) -> Manifest:
        if response.length is None or response.length > MAX_MANIFEST_BYTES:
            raise self.error(f"its manifest has {response.length} bytes, more than {MAX_MANIFEST_BYTES}.")
        text = response.read()
        snapshot, crc = response.headers.get("X-Snapshot", ""), response.headers.get("X-Crc32", "")
        if crc != str(zlib.crc32(text)):
            raise self.error("its manifest is damaged (crc32 differs).")
        if not (len(snapshot) == 16 and snapshot.isalnum() and snapshot.isascii()):
            raise self.error("its answer names no snapshot.")
        return Manifest(text, snapshot, response.headers.get("X-Memory", ""), connection)

    def digests(self, blocks: int) -> tuple[int, ...]:
        """Return the digests of all blocks of the snapshot, which the source computes now.

        Raises `TransferError`, or a connection's error.
        """
        connection = self.connect()
        try:
            response = self.get(connection, f"/snapshot/{self.manifest.snapshot}/digests")
            if response.status != http.client.OK or response.length != 4 * blocks:
                raise self.error(
                    f"its answer ({response.status}) has {response.length} bytes for the digests of {blocks} blocks."
                )
            values: tuple[int, ...] = struct.unpack(f">{blocks}I", response.read())
        except BaseException:
            self.discard(connection)
            raise
        self.put_back(connection)
        return values


def _reason(response: http.client.HTTPResponse) -> str:
    """Return the reason of a refusal as one printable line."""
    text = response.read(MAX_REASON_BYTES).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text)


class Retry:
    """Retry policy for broken connections: a pause before the next try, or the end. `sleep` makes the pause."""

    def __init__(self, source: Source, sleep: Callable[[float], object] = time.sleep) -> None:
        self._source = source
        self._sleep = sleep
        self._tries = 0  # tries in a row without progress
        self._refused = 0  # connects in a row that were refused, or whose host name is unknown

    def progress(self) -> None:
        self._tries = self._refused = 0

    def broken(self, error: Exception) -> None:
        """Pause before the next try. Raises `TransferError` if there is none."""
        unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
        self._refused = self._refused + 1 if unknown or isinstance(error, ConnectionRefusedError) else 0
        text = str(error) or type(error).__name__
        if self._refused >= REFUSED_TRIES and unknown:
            raise self._source.error(
                f"its name can't be resolved ({text}); set TORCHFT_X_ADVERTISE_HOST at the source."
            ) from None
        if self._refused >= REFUSED_TRIES:
            raise self._source.error(f"nobody listens there any more ({text}).") from None
        pause = _PAUSES[min(self._tries, len(_PAUSES) - 1)]
        self._tries += 1
        if self._source.left() <= pause:
            raise self._source.error(f"the connection broke and the deadline is near ({text}).") from None
        self._sleep(pause)
