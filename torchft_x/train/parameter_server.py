"""A parameter server on reconfigurable process groups, without a lighthouse.

A client asks over HTTP for a session, and gets its id and an address in the server's store. The two meet at that
address and make a process group of two: the server is rank 0, the client rank 1. The server runs
`ParameterServer.forward` on one thread per session. A client that is killed, hangs or sends nonsense ends its own
session only.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod

from torchft_x import net
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.store.create import serve_store
from torchft_x.durations import Seconds, seconds
from torchft_x.errors import ConfigError
from torchft_x.timing import PATIENCE, POLL
from torchft_x.train.parameter_wire import PATH, Endpoint, ask, checked_token

log = logging.getLogger(__name__)

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
        self._token = checked_token(token)
        self._max_sessions = max_sessions
        self._lock = threading.Lock()  # guards the sessions
        self._sessions: dict[str, _Session] = {}  # by session id; a session that ends removes itself
        self._closed = False
        self._http = Endpoint(port, self._open, self._token)
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
        store_addr = ask(address, checked_token(token), seconds(timeout))
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
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Delete the keys of ended sessions from the store.

        A client may write its last key after its session's end; the end of the next session then deletes that key.
        """
        with self._lock:
            there = {key.split("/")[1] for key in self._store.keys() if key.startswith("session/")}  # noqa: SIM118
            ended = there - set(self._sessions)
        for session_id in ended:
            self._store.delete_below(f"session/{session_id}/")


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
