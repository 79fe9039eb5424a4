"""PyTorch's WorkerServer on a unix socket, for people who use torch's own tools. Off unless TORCHFT_X_WORKER_SERVER is 1.

The supervisor does not use it (query_server.py serves the supervisor). Its threads are torch's, and a thread that wants
Python's lock when Python ends aborts the process. A request by hand while the process exits may cause that.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

HANDLER = "torchft_x"
_PATH_LIMIT = 107  # bytes of a unix socket's path; the kernel's field holds one more for the final zero
_LAST_ANSWERS = 0.02  # seconds to wait for handlers that run when the process ends; they take 2 ms

_server: Any = None  # torch's server, one per process
_owner = 0  # pid that started `_server`; a forked child has no server
_registered = False  # whether our handler is registered with torch
_read: Callable[[], dict[str, Any]] = dict  # returns the status of the newest Manager


def start(path: str, read: Callable[[], dict[str, Any]]) -> None:
    """Start the server, or make the running one answer with `read` from now on. Never raises. Not thread-safe."""
    global _server, _owner, _read
    _read = read
    if _server is not None and _owner == os.getpid():
        return
    _owner = os.getpid()
    try:
        _server = _start(path)
    except Exception as e:  # another version of torch: train without the server
        logger.warning("no WorkerServer in this process: %s", e)


def _start(path: str) -> Any:
    global _registered
    from torch._C._distributed_c10d import _register_handler, _WorkerServer

    if len(os.fsencode(path)) > _PATH_LIMIT:
        raise OSError(f"{path} is too long for a unix socket; set TMPDIR to a shorter folder.")
    if not _registered:  # registering twice raises; a registration survives a fork
        _register_handler(HANDLER, _answer)
        # torch drops its reference after Python has ended; dropping the last one then would abort the process
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_answer))
        _registered = True
    server = _WorkerServer(path)
    # Keep the server for ever: its destructor waits for its threads, as `shutdown` does.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    atexit.register(_stop, path, os.getpid())
    return server


def _stop(path: str, owner: int) -> None:
    """Remove the socket, because a handler that wants Python's lock when Python ends would abort the process.

    torch's own `shutdown` does not work (2.13): right after the start, or while a handler runs, it waits for ever.
    """
    if owner == os.getpid():  # a forked child must leave the socket alone
        with contextlib.suppress(OSError):
            os.unlink(path)
        time.sleep(_LAST_ANSWERS)


def _answer(request: Any, response: Any) -> None:
    """Answer a request with the status. Runs on a thread of torch's server."""
    response.set_content(json.dumps(_read(), default=str), "application/json")
    response.set_status(200)
