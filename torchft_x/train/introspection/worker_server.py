"""PyTorch's WorkerServer on a unix socket, for people who use torch's own tools. Off unless TORCHFT_X_WORKER_SERVER is 1.

The supervisor asks it nothing (query_server.py does that work): its threads are torch's, and one that wants Python's lock when
Python ends aborts the process. Who asks it by hand while the process exits may see that.
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
_PATH_LIMIT = 107  # bytes of a unix socket's path; the kernel's field holds them and a zero
_LAST_ANSWERS = 0.02  # seconds for handlers that run when the process ends; they take 2 ms

_server: Any = None  # torch's, one per process
_owner = 0  # pid that started it: a forked child has none
_registered = False  # our handler, with torch
_read: Callable[[], dict[str, Any]] = dict  # the status, of the newest Manager


def start(path: str, read: Callable[[], dict[str, Any]]) -> None:
    """Start the server, or let the process's own answer with this status from now on. Never raises. Not thread-safe."""
    global _server, _owner, _read
    _read = read
    if _server is not None and _owner == os.getpid():
        return
    _owner = os.getpid()
    try:
        _server = _start(path)
    except Exception as e:  # another version of torch: we train without
        logger.warning("no WorkerServer in this process: %s", e)


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
    """From here on nobody finds us: a handler that wants Python's lock when Python ends would abort the process.

    torch's own `shutdown` is of no use (2.13): right after the start, or while a handler runs, it waits for ever.
    """
    if owner == os.getpid():  # the socket is not a forked child's
        with contextlib.suppress(OSError):
            os.unlink(path)
        time.sleep(_LAST_ANSWERS)


def _answer(request: Any, response: Any) -> None:
    """On a thread of torch's server."""
    response.set_content(json.dumps(_read(), default=str), "application/json")
    response.set_status(200)
