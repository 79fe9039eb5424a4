"""One thread that runs quorums beside the training."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Task = Callable[[], None]


class QuorumThread:
    """Runs tasks one after the other. Its thread is a daemon: an ending process does not wait for a quorum."""

    def __init__(self, name: str) -> None:
        self._name = name  # of the thread
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()  # None ends the thread
        self._thread: threading.Thread | None = None  # started with the first task

    def submit(self, task: Task) -> None:
        """`task` must not raise."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def close(self) -> None:
        """End the thread after what is queued, without waiting."""
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
