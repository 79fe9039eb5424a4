"""What a trainer tells its supervisor about itself, also when its script hangs: PyTorch's WorkerServer, on a unix socket.

torch's server runs on threads of its own and answers there: the Python stacks of all threads (``dump_traceback``), the
Flight Recorder (``fr_trace_json``), and by our handler ``torchft_x`` where this rank is in its step. It needs Python's
lock, so a process that holds it for ever, or is stopped, doesn't answer; the supervisor says so (launch/collect.py).

The socket lies in the life's private folder (mode 0700) that the supervisor names in TORCHFT_X_WORKER_SERVER: nothing
is reachable from a network. "0" there switches it off. A process that can't have it trains without.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import logging
import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any

from torchft_x import env
from torchft_x.core.step import Step
from torchft_x.observe.events import subscribe
from torchft_x.train.options import Options

logger = logging.getLogger(__name__)

HANDLER = "torchft_x"
_PATH_LIMIT = 107  # bytes of a unix socket's path; the kernel's field holds them and a zero
_ERROR_LIMIT = 20_000  # characters of an uncaught exception's traceback that are kept, its end
_LAST_ANSWERS = 0.02  # seconds for handlers that run when the process ends; they take 2 ms
_STEP_ENDS = ("joined", "commit", "drop")


class Status:
    """Where this rank is. Read without a lock: what hangs may hold it, and a value of a moment ago does no harm."""

    def __init__(self, options: Options, step: Step, replica_id: str) -> None:
        self._options = options  # fixed
        self._step = step  # read only
        self._replica_id = replica_id  # fixed
        self._since = time.monotonic()  # when the step in hand began: the end of the one before
        self._longest = 0.0  # seconds of the longest committed step
        self._commits = 0  # steps committed in this life
        self._quorum: dict[str, Any] = {}  # of the newest `quorum` event
        self._configured: dict[str, Any] = {}  # of the newest `configure` event
        self._lost: list[dict[str, Any]] = []  # newest `member_lost` events
        self._error: str | None = None  # newest reason of an `error`, `abort` or `drop`
        self._pause_ends = 0.0  # monotonic; of an announced pause

    def hear(self, event: dict[str, Any]) -> None:
        """Of the event log, on whatever thread emits it."""
        if event.get("replica_id") != self._replica_id or event.get("rank") != self._options.group_rank:
            return
        name, now = event["event"], time.monotonic()
        if name in _STEP_ENDS:
            if name == "commit":
                self._commits += 1
                self._longest = max(self._longest, float(event.get("duration", 0.0)))
            self._since = now
        elif name == "quorum":
            self._quorum = event
        elif name == "configure":
            self._configured = event
        elif name == "member_lost":
            lost = {"replica_id": event.get("lost"), "reason": event.get("reason"), "t": event.get("t")}
            self._lost = [*self._lost[-7:], lost]
        if name in ("error", "abort", "drop"):
            self._error = event.get("reason", self._error)

    def pause(self, seconds: float) -> None:
        """An announced pause begins; 0: it ends, and the step in hand counts from here."""
        self._since = time.monotonic()
        self._pause_ends = self._since + seconds

    def read(self) -> dict[str, Any]:
        """What the handler answers: see docs/debugging.md for the fields."""
        step, now = self._step, time.monotonic()
        configured = float(self._configured.get("t", 0.0)) - float(self._configured.get("duration", 0.0))
        return {
            "replica_id": self._replica_id,
            "rank": self._options.group_rank,
            "world_size": self._options.group_world_size,
            "attempt": self._options.attempt,
            "pid": os.getpid(),
            "main_thread": f"0x{threading.main_thread().ident or 0:016x}",
            "t": time.time(),
            "step": step.state.step,
            "phase": step.phase.value,
            "step_seconds": round(now - self._since, 3),
            "longest_step": round(self._longest, 3),
            "commits": self._commits,
            "timeout": self._options.timeout,
            "paused": now < self._pause_ends,
            "quorum": step.quorum_id,
            "number": self._quorum.get("number"),
            "members": self._quorum.get("members", []),
            "config": self._configured.get("config"),
            "configured": max(0.0, configured),
            "participants": step.size,
            "lost": self._lost,
            "error": str(step.error) if step.error is not None else self._error,
        }


_lock = threading.Lock()  # guards what is below
_server: Any = None  # torch's, one per process
_owner = 0  # pid that started it: a forked child has none
_status: Status | None = None  # of the newest Manager
_registered = False  # our handler, with torch


def serve(options: Options, step: Step, replica_id: str) -> None:
    """Start the server, or let the process's own speak of this Manager from now on. Nothing happens without our
    supervisor. Never raises."""
    global _server, _owner, _status
    folder = env.read(env.WORKER_SERVER, None)
    if folder is None or folder == "0" or not os.path.isdir(folder):
        return
    status = Status(options, step, replica_id)
    subscribe(status.hear)
    with _lock:
        _status = status
        if _server is not None and _owner == os.getpid():
            return
        _note_uncaught(os.path.join(folder, f"{options.group_rank}.error.json"))
        _owner = os.getpid()
        try:
            _server = _start(os.path.join(folder, f"{options.group_rank}.sock"))
        except Exception as e:  # another version of torch: we train without
            logger.debug("no WorkerServer in this process: %s", e)


def pause(seconds: float) -> None:
    """`planned_pause` begins, or (0) ends."""
    if _status is not None:
        _status.pause(seconds)


def _start(path: str) -> Any:
    global _registered
    from torch._C._distributed_c10d import _register_handler, _WorkerServer

    if len(os.fsencode(path)) > _PATH_LIMIT:
        raise OSError(f"{path} is too long for a unix socket; set TMPDIR to a shorter folder.")
    if not _registered:  # twice raises; it stays over a fork
        _register_handler(HANDLER, _answer)
        # torch lets go of it after Python has ended, which would abort the process, were it the last reference
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_answer))
        _registered = True
    server = _WorkerServer(path)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))  # its end waits for its threads, as `shutdown` does
    atexit.register(_stop, path, os.getpid())
    return server


def _stop(path: str, owner: int) -> None:
    """From here on nobody asks us: a handler that wants Python's lock when Python ends would abort the process.

    torch's own `shutdown` is of no use (2.13): right after the start, or while a handler runs, it waits for ever.
    """
    if owner == os.getpid():  # the socket is not a forked child's
        with contextlib.suppress(OSError):
            os.unlink(path)
        time.sleep(_LAST_ANSWERS)


def _answer(request: Any, response: Any) -> None:
    """On a thread of torch's server."""
    status = _status
    response.set_content(json.dumps({} if status is None else status.read(), default=str), "application/json")
    response.set_status(200)


def _note_uncaught(path: str) -> None:
    """An exception that ends this process is written there, in the form of torchelastic's ``error.json``, which only
    scripts with its ``@record`` write."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            stack = "".join(traceback.format_exception(kind, error, trace))[-_ERROR_LIMIT:]
            extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
            with open(path, "w", encoding="utf-8") as f:
                json.dump({"message": {"message": f"{kind.__name__}: {error}", "extraInfo": extra}}, f)
        except Exception as e:  # the person must see the script's own error whatever happens here
            logger.debug("the error is not kept: %s", e)
        before(kind, error, trace)

    sys.excepthook = hook
