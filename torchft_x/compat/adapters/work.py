"""torchft's handle of a managed reduction, for stand-ins of a Manager. `Manager.allreduce` returns another class."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.futures import Future


class _ManagedWork(dist.Work):
    """Wrapper of a work that reports its failure to `manager` and never raises it.

    Args:
        manager: object whose `report_error` is called with a failure.
        work: any handle with `wait`.
        value: result of the future, whose callbacks run in the first `wait`, one after another.
    """

    def __init__(self, manager: Any, work: Any, value: object) -> None:
        super().__init__()
        self._manager = manager
        self._work = work
        self._future: Future[Any] = Future()
        self._value = value
        self._lock = threading.RLock()  # lets the future complete once; re-entrant, because a callback may call `wait`

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the work. Return False if it failed; the future then stays open."""
        try:
            self._work.wait(*(() if timeout is None else (timeout,)))
        except Exception as e:
            self._manager.report_error(e)
            return False
        self._complete()
        return True

    def block_current_stream(self, timeout: timedelta | None = None) -> None:
        """Block the current stream, not the caller. The future completes when the other work's does."""
        self._work.block_current_stream()
        self._work.get_future().add_done_callback(self._ended)

    def get_future(self) -> Future[Any]:
        return self._future

    def synchronize(self) -> None:
        self.wait()

    def _ended(self, result: Future[Any]) -> None:
        try:
            result.value()
        except Exception as e:
            self._manager.report_error(e)
        self._complete()

    def _complete(self) -> None:
        with self._lock:
            if self._future.done():
                return
            self._future.set_result(self._value)
