"""Deadlines of collectives nobody waits for: on an accelerator ``wait()`` holds up a stream, not a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from torch.distributed import Work

_LOOK = 0.02  # seconds between two looks while something runs


class _Watched(NamedTuple):
    work: Work
    deadline: float  # monotonic
    late: Callable[[], object]


class Watch:
    """Calls `late` of a work that hasn't completed by its deadline. Its thread runs only while there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._running: list[_Watched] = []
        self._thread: threading.Thread | None = None

    def add(self, work: Work, limit: float, late: Callable[[], object]) -> None:
        """`limit`: seconds from now."""
        with self._lock:
            self._running.append(_Watched(work, time.monotonic() + limit, late))
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_on, name="torchft_x watch", daemon=True)
                self._thread.start()

    def clear(self) -> None:
        """Forget all: the group has ended."""
        with self._lock:
            self._running = []

    def _look_on(self) -> None:
        while True:
            with self._lock:
                self._running = [w for w in self._running if not _is_completed(w.work)]
                if not self._running:
                    self._thread = None
                    return
                now = time.monotonic()
                late = [w for w in self._running if w.deadline < now]
            if late:
                late[0].late()  # ends the group, and with it all others
                self.clear()
            time.sleep(_LOOK)


def _is_completed(work: Work) -> bool:
    try:
        return work.is_completed()
    except RuntimeError:
        return True  # with an error, which whoever waits hears
