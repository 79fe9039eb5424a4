"""A lock for many readers or one writer, with a deadline for every wait. For users' own checkpoint transports."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class RWLock:
    """Lock that readers share and a writer holds alone. Not fair: a writer waits while readers come and go.

    `timeout`: seconds each acquire may take, after which it raises TimeoutError; negative: no limit. A lock that was
    acquired on one thread may be released on another.
    """

    def __init__(self, timeout: float = -1) -> None:
        self.timeout = timeout
        self._changed = threading.Condition()  # guards _readers and _written
        self._readers = 0
        self._written = False  # a writer holds the lock

    def r_acquire(self) -> None:
        with self._changed:
            self._wait(lambda: not self._written, "read")
            self._readers += 1

    def r_release(self) -> None:
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()

    def w_acquire(self) -> None:
        with self._changed:
            self._wait(lambda: not self._written and self._readers == 0, "write")
            self._written = True

    def w_release(self) -> None:
        with self._changed:
            self._written = False
            self._changed.notify_all()

    def w_locked(self) -> bool:
        """Return whether a writer holds the lock."""
        return self._written

    @contextlib.contextmanager
    def r_lock(self) -> Iterator[None]:
        self.r_acquire()
        try:
            yield
        finally:
            self.r_release()

    @contextlib.contextmanager
    def w_lock(self) -> Iterator[None]:
        self.w_acquire()
        try:
            yield
        finally:
            self.w_release()

    def _wait(self, free: Callable[[], bool], what: str) -> None:
        if not self._changed.wait_for(free, None if self.timeout < 0 else self.timeout):
            held = "a writer holds it" if self._written else f"{self._readers} readers hold it"
            raise TimeoutError(f"the lock to {what} timed out after {self.timeout:g} s: {held}.")
