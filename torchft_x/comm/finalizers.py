"""What has to end when its owner is forgotten, without anybody having said so: done on a thread of its own.

A finalizer runs wherever the garbage collector comes by: in any thread, between any two instructions, under any lock,
also under one that the end itself needs. So a finalizer only hands over; `queue.SimpleQueue` is made for that.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)

_lock = threading.Lock()  # guards the thread's beginning; nothing is collected that needs it
_ends: SimpleQueue[Callable[[], object] | None] = SimpleQueue()  # None: the last one
_thread: threading.Thread | None = None  # made on first use


def when_forgotten(owner: object, end: Callable[[], object]) -> None:
    """Call `end` soon after `owner` has become garbage, not at the end of the process. `end` must not lead to `owner`."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_run, args=(_ends,), name="torchft_x forgotten", daemon=True)
            _thread.start()
    weakref.finalize(owner, _ends.put, end).atexit = False


def finish(timeout: float) -> None:
    """Call no more of them, and wait at most `timeout` (s) for the one in progress."""
    if _thread is not None:
        _ends.put(None)
        _thread.join(timeout)


def _run(ends: SimpleQueue[Callable[[], object] | None]) -> None:
    while (end := ends.get()) is not None:
        try:
            end()
        except Exception:
            log.exception("What a forgotten process group left behind could not be ended.")
        del end  # it may be what keeps a group's memory


def _after_fork_in_child() -> None:
    """The thread isn't here, and what the parent's owners leave behind is the parent's."""
    global _lock, _ends, _thread
    _lock, _ends, _thread = threading.Lock(), SimpleQueue(), None


os.register_at_fork(after_in_child=_after_fork_in_child)
