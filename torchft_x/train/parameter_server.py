"""A parameter server on reconfigurable process groups, without a lighthouse.

A client asks over HTTP for a session, and gets its id and an address in the server's store. The two meet at that
address and make a process group of two: the server is rank 0, the client rank 1. The server runs
`ParameterServer.forward` on one thread per session. A client that is killed, hangs or sends nonsense ends its own
session only.

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
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from torchft_x import env, net, tls
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.store.create import serve_store, split_store_address
from torchft_x.descriptors import not_inherited, shut
from torchft_x.durations import Seconds, seconds
from torchft_x.errors import AddressError, ConfigError, DeadlineError, RefusedError, TokenError, UnreachableError
from torchft_x.timing import PATIENCE, POLL

log = logging.getLogger(__name__)

PATH = "/new_session"
MAX_CONNECTIONS = 64
"""Largest number of open HTTP connections. Each serves one request."""
MAX_ANSWER = 4096
"""Largest number of bytes of an answer that a client reads; our answers have about 150."""
MAX_SESSIONS = 64
"""Largest number of open sessions. Each takes two threads, about ten descriptors and a copy of the data it sends."""


class ParameterServer(ABC):
    """Server that gives each client a session. Serves from construction until `shutdown`, on every interface.

    Subclasses define `new_process_group` and `forward`.

    Args:
        port: port of the HTTP endpoint; 0 takes any free one.
        store_port: port of the store where server and client meet; 0 takes any free one.
        host: name or address by which clients reach this machine (TORCHFT_X_ADVERTISE_HOST; see docs/schedulers.md).
        token: token that clients must send (TORCHFT_X_TOKEN, TORCHFT_X_TOKEN_FILE); "" asks for none.
        max_sessions: largest number of open sessions; further requests are refused.

    Raises `AddressError` if `host` isn't this machine, `UnreachableError` if a port is taken.
    """

    def __init__(
        self,
        port: int,
        store_port: int = 0,
        *,
        host: str | None = None,
        token: str | None = None,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        if max_sessions < 1:
            raise ConfigError(f"max_sessions={max_sessions} lets nobody in; give at least 1.")
        self._host = net.advertise_host(host)
        self._token = _checked_token(token)
        self._max_sessions = max_sessions
        self._lock = threading.Lock()  # guards the sessions
        self._sessions: dict[str, _Session] = {}  # by session id; a session that ends removes itself
        self._closed = False
        self._http = _Endpoint(port, self._open, self._token)
        try:
            self._store, self._store_address = serve_store(self._host, store_port)
        except Exception:
            self._http.server_close()
            raise
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(POLL,), name="parameter-server", daemon=True
        )
        self._thread.start()
        log.info("parameter server at %s, %s", self.address(), "token needed" if self._token else "open to everybody")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address()}, {len(self._sessions)} of {self._max_sessions} sessions>"

    def address(self) -> str:
        """Return the address to give to `new_session`: ``http://host:port/new_session``."""
        return f"{net.Address(self._host, self._http.port).url}{PATH}"

    def num_sessions(self) -> int:
        """Return the number of open sessions, including those that still wait for their client."""
        with self._lock:
            return len(self._sessions)

    @classmethod
    @abstractmethod
    def new_process_group(cls) -> ProcessGroup:
        """Make a process group that isn't configured, of the same kind on both sides.

        Its timeout applies to each collective of a session: it bounds how long one side waits for the other.
        """

    @abstractmethod
    def forward(self, session_id: str, pg: ProcessGroup) -> None:
        """Serve one client: the server is rank 0 of `pg`, the client rank 1.

        Called once per session, on a thread of its own. The session ends when this returns or raises. If the client
        goes away, the running collective raises `CollectiveError`. Guard data that sessions share by a lock.
        """

    @classmethod
    def new_session(cls, address: str, *, token: str | None = None, timeout: Seconds = 60.0) -> ProcessGroup:
        """Open a session as a client: return a process group of the server (rank 0) and this process (rank 1).

        End the session with the process group's ``shutdown()``. `timeout`: seconds until the server must have answered.
        `token` as in the constructor.

        Raises `AddressError`, `UnreachableError` (nothing listens), `TokenError`, `RefusedError` (no session is free),
        `DeadlineError`, and the errors of ``configure``.
        """
        store_addr = _ask(address, _checked_token(token), seconds(timeout))
        pg = cls.new_process_group()
        try:
            pg.configure(store_addr, "client", 1, 2)
        except Exception:
            pg.shutdown()
            raise
        return pg

    def shutdown(self) -> None:
        """Refuse new sessions, end the open ones (their clients' collectives raise) and free the ports. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sessions = list(self._sessions.values())
        self._http.shutdown()
        self._http.server_close()
        for session in sessions:
            session.end()
        deadline = time.monotonic() + PATIENCE
        for session in sessions:
            session.thread.join(max(deadline - time.monotonic(), 0.0))
        self._store.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _open(self, client: str) -> dict[str, str] | None:
        """Open a session that waits for `client` in the store. Return id and address; None if there are too many."""
        session_id = str(uuid.uuid4())
        address = f"{self._store_address.text}/session/{session_id}"
        session = _Session(session_id, client, address)
        session.thread = threading.Thread(
            target=self._serve, args=(session,), name=f"session-{session_id[:8]}", daemon=True
        )
        with self._lock:
            if self._closed or len(self._sessions) >= self._max_sessions:
                return None
            self._sessions[session_id] = session
        session.thread.start()
        return {"session_id": session_id, "store_addr": address}

    def _serve(self, session: _Session) -> None:
        """Run a session on its thread. An error ends this session and no other one."""
        try:
            pg = session.pg = self.new_process_group()
            if session.ended:
                return
            pg.configure(session.store_addr, "parameter server", 0, 2)
            log.info("%s begins", session)
            self.forward(session.id, pg)
            log.info("%s is over", session)
        except Exception as e:
            (log.info if session.ended else log.warning)("%s has ended: %s", session, e)
            log.debug("where it ended", exc_info=True)
        finally:
            with self._lock:
                self._sessions.pop(session.id, None)
            session.end()
            # A key that the client writes later stays until the store is full and drops its oldest keys.
            self._store.delete_below(f"session/{session.id}/")


class _Session:
    """Session of one client. Owns its process group and the thread that serves it."""

    def __init__(self, session_id: str, client: str, store_addr: str) -> None:
        self.id = session_id
        self.store_addr = store_addr
        self.pg: ProcessGroup | None = None  # None until the session's thread has made it
        self.ended = False  # whether `end` was called
        self.thread: threading.Thread  # runs `ParameterServer._serve`
        self._client = client  # the client's address, for messages

    def __str__(self) -> str:
        return f"session {self.id[:8]} of {self._client}"

    def end(self) -> None:
        """Shut the process group down, which makes the collectives of both sides raise."""
        self.ended = True
        if self.pg is not None:
            self.pg.shutdown()


class _Endpoint(socketserver.ThreadingMixIn, socketserver.TCPServer):
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
    server: _Endpoint

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


def _checked_token(given: str | None) -> str | None:
    token = tls.use_token(env.read_token() if given is None else given) or None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ConfigError("token: it has characters an HTTP header can't carry; use printable ASCII.")
    return token


def _ask(url: str, token: str | None, timeout: float) -> str:
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
