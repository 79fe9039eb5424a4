"""A thread for callbacks, whose work (abort collectives, join threads) must never block the loop."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Notifier:
    """Daemon thread that runs posted callbacks in order. It logs the exception of a callback, and runs the next."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None ends the thread
        self._thread = threading.Thread(target=self._run, name=f"torchft_x-{name}", daemon=True)
        self._thread.start()

    def post(self, callback: Callable[[], None]) -> None:
        self._queue.put(callback)

    def close(self) -> None:
        """End the thread after the callbacks that were posted before."""
        self._queue.put(None)

    def _run(self) -> None:
        while (callback := self._queue.get()) is not None:
            try:
                callback()
            except Exception:
                log.exception("a callback of %s failed", self._thread.name)
