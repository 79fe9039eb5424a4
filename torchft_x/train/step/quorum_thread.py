"""A thread that runs quorums beside the training."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Task = Callable[[], None]


class QuorumThread:
    """Runs tasks one after the other. Its thread is a daemon, so that an ending process does not wait for a quorum."""

    def __init__(self, name: str) -> None:
        self._name = name  # the thread's name
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()  # None ends the thread
        self._thread: threading.Thread | None = None  # None before the first task

    def submit(self, task: Task) -> None:
        """Run `task` after the tasks before it; start the thread if it is the first. `task` must not raise."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def close(self) -> None:
        """Stop the thread after the queued tasks, without waiting."""
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
