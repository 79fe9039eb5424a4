"""Close resources whose owner was garbage-collected without closing them, on a separate thread.

A finalizer may run in any thread, between any two instructions and under any lock, including one that the close
itself needs. So a finalizer only puts the close into a `queue.SimpleQueue`, whose `put` is reentrant.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)

_lock = threading.Lock()  # guards the start of the thread; no finalizer takes this lock
_ends: SimpleQueue[Callable[[], object] | None] = SimpleQueue()  # None ends the thread
_thread: threading.Thread | None = None  # started on first use


def when_forgotten(owner: object, end: Callable[[], object]) -> None:
    """Call `end` soon after `owner` is garbage-collected, but not at process exit. `end` must not reference `owner`."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_run, args=(_ends,), name="torchft_x forgotten", daemon=True)
            _thread.start()
    weakref.finalize(owner, _ends.put, end).atexit = False


def finish(timeout: float) -> None:
    """Stop the thread, and wait at most `timeout` seconds for the call in progress."""
    if _thread is not None:
        _ends.put(None)
        _thread.join(timeout)


def _run(ends: SimpleQueue[Callable[[], object] | None]) -> None:
    while (end := ends.get()) is not None:
        try:
            end()
        except Exception:
            log.exception("What a forgotten process group left behind could not be ended.")
        del end  # it may hold the last reference to a group's memory


def _after_fork_in_child() -> None:
    """Reset the module's state: the child has no such thread, and the parent closes its own objects."""
    global _lock, _ends, _thread
    _lock, _ends, _thread = threading.Lock(), SimpleQueue(), None


os.register_at_fork(after_in_child=_after_fork_in_child)
