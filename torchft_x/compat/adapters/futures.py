"""Deadlines for torch's futures, for blocks of code, and for the work of a stream.

A callback that does not return for TORCHFT_WATCHDOG_TIMEOUT_SEC (30 s) ends the process, as in torchft.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch.futures import Future

from torchft_x import env
from torchft_x.durations import Seconds

log = logging.getLogger(__name__)


class _Timers:
    """Scheduler of callbacks, each on a thread of its own."""

    def __init__(self) -> None:
        self._watchdog_interval = timedelta(seconds=env.read_seconds(env.WATCHDOG_TIMEOUT, 30.0) or 30.0)

    def after(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after `seconds`. Return a function that cancels it without waiting for a running callback."""
        return _timer(seconds, lambda: self._run(callback)).cancel

    def _run(self, callback: Callable[[], None]) -> None:
        watchdog = _timer(self._watchdog_interval.total_seconds(), self._exit)
        try:
            callback()
        except Exception:
            log.exception("what was to be done at a deadline has failed")
        finally:
            watchdog.cancel()

    def _exit(self) -> None:
        log.error(
            "a callback of a deadline has not returned for %g s; this process is ended. Callbacks must not block (%s)",
            self._watchdog_interval.total_seconds(),
            env.WATCHDOG_TIMEOUT,
        )
        try:
            sys.exit(1)
        except SystemExit as e:  # it would end this thread only
            os._exit(int(e.code or 1))


def _timer(seconds: float, callback: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, callback)
    timer.name, timer.daemon = "torchft_x deadline", True
    timer.start()
    return timer


_TIMEOUT_MANAGER = _Timers()


def _seconds(timeout: Seconds) -> float:
    return max(0.0, timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout))


def future_timeout(fut: Future[Any], timeout: Seconds) -> Future[Any]:
    """Return a future that ends as `fut` does, or with TimeoutError if `fut` takes longer. `fut` itself goes on."""
    out: Future[Any] = Future()
    lock = threading.Lock()  # `fut` and the deadline may end at the same moment
    limit = _seconds(timeout)

    def late() -> None:
        with lock:
            if not out.done():
                out.set_exception(TimeoutError(f"a future did not complete within {limit:g} s"))

    def ended(result: Future[Any]) -> None:
        cancel()
        with lock:
            if out.done():
                return
            try:
                out.set_result(result.value())
            except Exception as e:
                out.set_exception(e)

    cancel = _TIMEOUT_MANAGER.after(limit, late)
    fut.add_done_callback(ended)
    return out


def future_wait(fut: Future[Any], timeout: Seconds) -> Any:
    """Wait for the value of `fut` and return it. Raises the error of `fut`, or TimeoutError."""
    done = threading.Event()
    fut.add_done_callback(lambda _: done.set())
    limit = _seconds(timeout)
    if not done.wait(limit):
        raise TimeoutError(f"a future did not complete within {limit:g} s")
    return fut.value()


@contextlib.contextmanager
def context_timeout(callback: Callable[[], None], timeout: Seconds) -> Iterator[None]:
    """Call `callback`, from another thread, if the block takes longer."""
    cancel = _TIMEOUT_MANAGER.after(_seconds(timeout), callback)
    try:
        yield
    finally:
        cancel()


def stream_timeout(callback: Callable[[], None], timeout: Seconds) -> None:
    """Call `callback`, from another thread, if the present work of the accelerator's current stream takes longer."""
    event: Any = torch.Event()
    event.record()

    def look() -> None:
        if not event.query():
            callback()

    _TIMEOUT_MANAGER.after(_seconds(timeout), look)
