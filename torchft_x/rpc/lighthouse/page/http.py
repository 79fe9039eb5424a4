"""HTTP server on the lighthouse's loop, without a thread: h11 for the protocol, and limits against strangers.

The number of connections, the requests per second, and the bytes and seconds of each are limited. So all who reach the
port cost the lighthouse at most a few hundredths of its time and some hundred kilobytes. Of too many, the
connection that has been idle for longest is closed. The page has a port of its own, because gRPC can't pass an HTTP/1.1
connection on, and a proxy before it would slow every call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import h11

from torchft_x import net, tls
from torchft_x.errors import AddressError
from torchft_x.net import Address
from torchft_x.timing import ANSWER, PATIENCE

log = logging.getLogger(__name__)

MOST = 64
"""Open connections."""
PER_SECOND = 20.0
"""Requests and new connections per second, of all clients together. A page asks once a second."""
BURST = 40
"""Requests and new connections at once."""
HEAD = 8 << 10
"""Bytes of a request's head."""
BODY = 4 << 10
"""Bytes of a request's body."""
_REQUESTS = 1000  # requests on one connection
_BACKLOG = 16  # connections that the kernel queues for us
_NO_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
    b"This page speaks TLS: begin its address with https://.\n"
)
_LENGTHS = re.compile(rb"^content-length:(.*)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # without the query
    headers: dict[str, str]  # values by name in lower case; the last value of a repeated header
    body: bytes = b""


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)


Answer = Callable[[Request], Awaitable[Response]]


class FramingError(h11.RemoteProtocolError):
    """Request whose end a proxy could determine differently than we do."""


class Budget:
    """Rate limit for all callers together: `per_second` turns, and `burst` at once. Callers wait; none is refused."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._each = 1.0 / per_second
        self._credit = burst / per_second  # seconds by which a burst may run ahead
        self._next = float("-inf")  # time of the next turn if there were no burst

    def wait(self, now: float) -> float:
        """Take a turn, and return the seconds until it comes."""
        self._next = max(self._next, now - self._credit) + self._each
        return max(0.0, self._next - now)


class Connection:
    """The bytes of one connection, through TLS if this process uses it. asyncio's own TLS has no limits on either side."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._received, self._unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.contexts()[2].wrap_bio(self._received, self._unsent, True) if tls.is_on() else None

    async def receive(self, size: int) -> bytes:
        """Return at most `size` bytes; none if the connection was closed."""
        if self._tls is None:
            return await asyncio.get_running_loop().sock_recv(self._sock, size)
        return await self._run(self._tls.read, size)

    async def send(self, data: bytes) -> None:
        if self._tls is None:
            return await asyncio.get_running_loop().sock_sendall(self._sock, data)
        if data:
            await self._run(self._tls.write, data)

    async def _run(self, step: Callable[[Any], Any], argument: Any) -> Any:
        loop, found = asyncio.get_running_loop(), None
        while found is None:
            with contextlib.suppress(ssl.SSLWantReadError):
                found = step(argument)
            await loop.sock_sendall(self._sock, self._unsent.read())
            if found is None:
                data = await loop.sock_recv(self._sock, 1 << 14)
                if not data:
                    return b""
                self._received.write(data)
        return found


class HttpServer:
    """HTTP server that answers each request with `answer`, which must not raise."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._budget = Budget(PER_SECOND, BURST)
        self._listener: socket.socket | None = None  # set while the server listens
        self._accepting: asyncio.Task[None] | None = None
        self._open: dict[asyncio.Task[None], None] = {}  # connections, the longest idle first

    def listen(self, bind: Address) -> Address:
        """Start to listen and return the address. Runs on the loop. Raises `AddressError`."""
        try:
            host = net.any_host() if bind.host == "::" else bind.host
            family, *_, target = socket.getaddrinfo(host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
                0
            ]
            both = host == "::" and socket.has_dualstack_ipv6()
            self._listener = socket.create_server(target[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        except (OSError, UnicodeError, OverflowError) as e:
            errno = getattr(e, "errno", None)
            reason = os.strerror(errno) if errno and errno > 0 else getattr(e, "strerror", None) or str(e)
            raise AddressError(f"The page can't listen on {bind.target}: {reason}.") from None
        self._listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._listener))
        return Address(bind.host, self._listener.getsockname()[1])

    async def close(self) -> None:
        tasks = [*self._open, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _turn(self) -> None:
        wait = self._budget.wait(time.monotonic())
        if wait > 0:
            await asyncio.sleep(wait)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # no descriptor is free, or the client has gone
                await asyncio.sleep(0.1)
                continue
            if len(self._open) >= MOST:
                oldest = next(iter(self._open))
                del self._open[oldest]
                oldest.cancel()
            task = loop.create_task(self._serve(connection))
            self._open[task] = None
            task.add_done_callback(lambda done: self._open.pop(done, None))
            await self._turn()

    async def _serve(self, sock: socket.socket) -> None:
        with sock:
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD)
            connection = Connection(sock)
            try:
                for _ in range(_REQUESTS):
                    if not await self._exchange(http, connection):
                        return
                    self._youngest()
            except h11.RemoteProtocolError as e:
                sentence = f"{e}.\n" if isinstance(e, FramingError) else "That is no HTTP/1.1.\n"
                refusal = Response(e.error_status_hint, sentence.encode(), headers={"Connection": "close"})
                with contextlib.suppress(h11.LocalProtocolError, OSError, asyncio.TimeoutError):
                    await self._send(http, connection, refusal, "GET")
            except ssl.SSLError as e:
                if e.reason == "HTTP_REQUEST":
                    with contextlib.suppress(OSError, asyncio.TimeoutError):
                        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(sock, _NO_TLS), PATIENCE)
            except (OSError, asyncio.TimeoutError):
                pass
            except Exception:  # a defect of ours ends this connection, not the lighthouse
                log.exception("a request to the page failed")

    def _youngest(self) -> None:
        """Move this connection, which has just been used, to the end of the order of idleness."""
        task = asyncio.current_task()
        if task in self._open:
            self._open[task] = self._open.pop(task)

    async def _exchange(self, http: h11.Connection, connection: Connection) -> bool:
        """Read one request and answer it. Return whether the connection stays open."""
        request = await asyncio.wait_for(self._read(http, connection), ANSWER)
        if request is None:
            return False
        await self._turn()
        too_long = len(request.body) > BODY
        response = Response(413, b"The body is too long.\n") if too_long else await self._answer(request)
        await self._send(http, connection, response, request.method)
        if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
            return False
        http.start_next_cycle()
        return True

    async def _read(self, http: h11.Connection, connection: Connection) -> Request | None:
        """Read one request. Return None if the connection was closed."""
        head: h11.Request | None = None
        body = b""
        while True:
            before, _ = http.trailing_data
            event = http.next_event()
            if event is h11.NEED_DATA:
                if http.they_are_waiting_for_100_continue:
                    informed = http.send(h11.InformationalResponse(status_code=100, headers=[]))
                    await connection.send(informed or b"")
                http.receive_data(await connection.receive(4096))
            elif isinstance(event, h11.Request):
                head = event
                left, _ = http.trailing_data
                _check_framing(head, before[: len(before) - len(left)])
            elif isinstance(event, h11.Data) and len(body) <= BODY:
                body += bytes(event.data)
            if len(body) > BODY or (head is not None and isinstance(event, h11.EndOfMessage)):
                assert head is not None
                return _request(head, body)
            if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                return None

    async def _send(self, http: h11.Connection, connection: Connection, response: Response, method: str) -> None:
        headers = {
            "Content-Type": response.kind,
            "Content-Length": str(len(response.body)),
            **_HEADERS,
            **response.headers,
        }
        phrase = HTTPStatus(response.status).phrase
        parts = [
            http.send(h11.Response(status_code=response.status, reason=phrase, headers=list(headers.items()))) or b""
        ]
        if method != "HEAD":
            parts.append(http.send(h11.Data(data=response.body)) or b"")
        parts.append(http.send(h11.EndOfMessage()) or b"")
        await asyncio.wait_for(connection.send(b"".join(parts)), PATIENCE)


_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def _check_framing(head: h11.Request, raw: bytes) -> None:
    """Raise `FramingError` unless the head gives the body's length at most once, as a number of bytes.

    h11 keeps only one of two equal lengths, so this looks for them in the bytes of the head.
    """
    lengths = _LENGTHS.findall(raw)
    if any(name == b"transfer-encoding" for name, _ in head.headers):
        raise FramingError("A request may not have a Transfer-Encoding here: send the body with a Content-Length")
    if len(lengths) > 1 or any(b"," in length for length in lengths):
        raise FramingError("A request may have one Content-Length")


def _request(head: h11.Request, body: bytes) -> Request:
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
    path = head.target.decode("ascii", "replace").partition("?")[0]
    return Request(head.method.decode("ascii"), path, headers, body)
