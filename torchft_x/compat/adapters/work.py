"""torchft's handle of a managed reduction, for stand-ins of a Manager: what `Manager.allreduce` returns is a class of its own."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.futures import Future


class _ManagedWork(dist.Work):
    """A work around another one, whose failure is told to `manager` and never raised.

    Args:
        manager: hears `report_error` of what fails.
        work: any handle with `wait`.
        value: what the future completes with; its callbacks run in the first `wait`, one after another.
    """

    def __init__(self, manager: Any, work: Any, value: object) -> None:
        super().__init__()
        self._manager = manager
        self._work = work
        self._future: Future[Any] = Future()
        self._value = value
        self._lock = threading.RLock()  # completed once; a callback may call `wait`

    def wait(self, timeout: timedelta | None = None) -> bool:
        """False: it failed, and the future stays open."""
        try:
            self._work.wait(*(() if timeout is None else (timeout,)))
        except Exception as e:
            self._manager.report_error(e)
            return False
        self._complete()
        return True

    def block_current_stream(self, timeout: timedelta | None = None) -> None:
        """Don't wait: the future completes when the other work's does."""
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
