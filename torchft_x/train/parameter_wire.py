"""HTTP request for a session of a parameter server: its endpoint and its client. `parameter_server` uses both.

``GET /new_session`` -> 200, ``{"session_id": ..., "store_addr": "host:port/session/..."}``, as in torchft. Unlike
torchft's server ours checks the run's token (``Authorization: Bearer ...``) if there is one. It refuses with a
sentence: 401 the token is missing or wrong, 404 unknown path, 503 no session is free.
"""

from __future__ import annotations

import hmac
import http.client
import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from torchft_x import env, net, tls
from torchft_x.comm.store.create import split_store_address
from torchft_x.descriptors import not_inherited, shut
from torchft_x.errors import AddressError, ConfigError, DeadlineError, RefusedError, TokenError, UnreachableError
from torchft_x.timing import PATIENCE

log = logging.getLogger(__name__)

PATH = "/new_session"
MAX_CONNECTIONS = 64
"""Largest number of open HTTP connections. Each serves one request."""
MAX_ANSWER = 4096
"""Largest number of bytes of an answer that a client reads; our answers have about 150."""


class Endpoint(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """HTTP server with one thread per connection. Refuses connections beyond `MAX_CONNECTIONS`."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128
    block_on_close = False

    def __init__(self, port: int, open_session: Callable[[str], dict[str, str] | None], token: str | None) -> None:
        self.open_session = open_session  # opens a session for a client's address; returns None if there are too many
        self.token = token  # None: no token is needed
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        host = net.any_host()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as e:
            reason = getattr(e, "strerror", None) or e
            raise UnreachableError(f"the parameter server can't listen on port {port}: {reason}.") from None
        not_inherited(self.socket)
        self.port: int = self.socket.getsockname()[1]

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def get_request(self) -> tuple[Any, Any]:
        request, client_address = super().get_request()
        return tls.server(request), client_address

    def process_request(self, request: Any, client_address: Any) -> None:
        not_inherited(request)
        if not self._free.acquire(blocking=False):
            log.warning("a client at %s is turned away: %d connections are open", client_address[0], MAX_CONNECTIONS)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the thread could not be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("client %s", client_address[0], exc_info=True)  # the client hung up, or was too slow


class _Handler(BaseHTTPRequestHandler):
    server_version = "torchft_x"
    sys_version = ""
    timeout = PATIENCE
    server: Endpoint

    def setup(self) -> None:
        super().setup()
        # `timeout` bounds one read only: a client that trickles bytes would hold its connection for ever.
        self._limit = threading.Timer(PATIENCE, shut, [self.connection])
        self._limit.daemon = True
        self._limit.start()

    def finish(self) -> None:
        self._limit.cancel()
        super().finish()

    def do_GET(self) -> None:
        if not self._authorized():
            return self._answer(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
        if self.path != PATH:
            return self._answer(HTTPStatus.NOT_FOUND, f"there is nothing at this path; sessions are at {PATH}")
        opened = self.server.open_session(self.client_address[0].removeprefix("::ffff:"))
        if opened is None:
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "no session is free; try again when another has ended")
        self._answer(HTTPStatus.OK, json.dumps(opened), "application/json")

    def _authorized(self) -> bool:
        if self.server.token is None:
            return True
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {self.server.token}".encode())

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("client %s: " + format, self.client_address[0], *args)


def checked_token(given: str | None) -> str | None:
    token = tls.use_token(env.read_token() if given is None else given) or None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ConfigError("token: it has characters an HTTP header can't carry; use printable ASCII.")
    return token


def ask(url: str, token: str | None, timeout: float) -> str:
    """Ask the parameter server at `url` for a session and return its address in the server's store.

    `timeout` is in seconds. Raises `AddressError`, `UnreachableError`, `DeadlineError`, `TokenError` or `RefusedError`.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.path != PATH:
            raise AddressError(f"it is not of the form http://HOST:PORT{PATH}.")
        where = net.parse_address(parts.netloc, what="parameter server")
    except ValueError as e:  # AddressError is a ValueError
        raise AddressError(f"parameter server {url!r}: {e}") from None
    env.enable_tls_if_https(url)
    who = f"the parameter server at {where.url}"
    connection = http.client.HTTPConnection(where.host, where.port, timeout=timeout)
    try:
        connection.connect()
        connection.sock = tls.client(connection.sock)
        connection.request("GET", PATH, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        body = response.read(MAX_ANSWER + 1)
    except socket.gaierror as e:
        raise AddressError(f"{who}: the name {where.host!r} can't be resolved ({e.strerror}).") from None
    except TimeoutError:
        raise DeadlineError(f"{who} did not answer within {timeout:g} s.") from None
    except (OSError, http.client.HTTPException) as e:
        raise UnreachableError(f"{who} can't be reached: {getattr(e, 'strerror', None) or e!r}.") from None
    finally:
        connection.close()
    if response.status == HTTPStatus.UNAUTHORIZED:
        raise TokenError(f"{who} refuses us: {_words(body)}; set {env.TOKEN} or {env.TOKEN_FILE} to its token.")
    if response.status != HTTPStatus.OK:
        raise RefusedError(f"{who} refuses us ({response.status}): {_words(body)}.")
    try:
        store_addr = json.loads(body)["store_addr"]
        split_store_address(store_addr)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RefusedError(f"{who} answered {_words(body)!r}, which is no session; is it one of torchft_x?") from None
    return str(store_addr)


def _words(body: bytes) -> str:
    text = body[:300].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)
