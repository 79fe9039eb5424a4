"""Deadlines for torch's futures, for blocks of code, and for the work of a stream.

One thread runs all deadlines, and a second one watches it. If a callback blocks the first for too long
(TORCHFT_WATCHDOG_TIMEOUT_SEC, 30 s), no deadline holds any more, and the process is ended.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch.futures import Future

from torchft_x import env
from torchft_x.durations import Seconds

log = logging.getLogger(__name__)


class _Timers:
    """Scheduler of callbacks. Its threads start with the first callback."""

    def __init__(self) -> None:
        self._watchdog_interval = timedelta(seconds=env.read_seconds(env.WATCHDOG_TIMEOUT, 30.0) or 30.0)
        self._changed = threading.Condition()  # guards the attributes below
        self._due: dict[int, tuple[float, Callable[[], None]]] = {}  # by number: monotonic time and callback
        self._numbers = itertools.count()
        self._busy_since: float | None = None  # start (monotonic) of the running callback; None: none runs
        self._started = False

    def after(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after `seconds`. Return a function that cancels it without waiting for a running callback."""
        with self._changed:
            if not self._started:
                self._started = True
                for run in (self._run, self._watch):
                    threading.Thread(target=run, name="torchft_x deadlines", daemon=True).start()
            number = next(self._numbers)
            self._due[number] = time.monotonic() + seconds, callback
            self._changed.notify()

        def cancel() -> None:
            with self._changed:
                self._due.pop(number, None)

        return cancel

    def _run(self) -> None:
        while True:
            callback = self._next()
            try:
                callback()
            except Exception:
                log.exception("what was to be done at a deadline has failed")
            with self._changed:
                self._busy_since = None

    def _next(self) -> Callable[[], None]:
        with self._changed:
            while True:
                now = time.monotonic()
                number = min(self._due, key=lambda number: self._due[number][0], default=None)
                if number is None:
                    self._changed.wait()
                elif self._due[number][0] > now:
                    self._changed.wait(self._due[number][0] - now)
                else:
                    self._busy_since = now
                    return self._due.pop(number)[1]

    def _watch(self) -> None:
        while True:
            limit = self._watchdog_interval.total_seconds()
            time.sleep(limit / 4)
            since = self._busy_since
            if since is not None and time.monotonic() - since > limit:
                log.error(
                    "a callback of a deadline has not returned for %g s, so no deadline holds any more; this process is "
                    "ended. Callbacks must not block (%s)",
                    limit,
                    env.WATCHDOG_TIMEOUT,
                )
                try:
                    sys.exit(1)
                except SystemExit as e:  # it would end this thread only
                    os._exit(int(e.code or 1))


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
