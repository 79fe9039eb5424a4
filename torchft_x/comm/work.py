"""Handles of collectives: ``wait()`` and ``get_future()`` for each kind of outcome."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work
from torch.futures import Future

from torchft_x.errors import CollectiveError
from torchft_x.timing import POLL

_LOOK = timedelta(seconds=0.02)  # time between two checks once the group is broken
BETWEEN_TWO = frozenset({"send", "recv", "recv_anysource"})  # operations that `WaitedOnThread` waits for
_LOOKS = 12  # checks of a broken group before an operation is abandoned; others, with 100 MB in flight, end in 15 ms


def _plain_thread(action: Callable[[], None]) -> threading.Thread | None:
    thread = threading.Thread(target=action, name="torchft_x wait", daemon=True)
    thread.start()
    return thread


class DoneWork(Work):
    """A collective that is complete, with its result (the output tensors)."""

    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self._result = result  # value of the future

    def is_completed(self) -> bool:
        return True

    def result(self) -> Any:
        return self._result

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._result)
        return future


class FailedWork(Work):
    """A collective that failed, or was never started."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error  # raised by every wait

    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        raise self._error

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(self._error)
        return future


class GroupWork(Work):
    """Handle of a running collective of a torch group. Reports a failure to the group, and raises it as our error.

    When a connection breaks, gloo drops a message that is half sent or half received. The operation then ends only at
    the group's timeout, although gloo never touches its tensors again. So `wait` regularly checks whether the group
    is broken or has lost a connection, and after some checks abandons the operation.

    Args:
        inner: torch's handle.
        result: value of the future.
        failed: called with torch's exception, or None if the limit given to ``wait`` ran out; it must break the group
            and return the exception to raise.
        broken: returns whether the group's connections have been shut.
        leave: takes over an abandoned handle; torch's group must not be released before that operation has ended.
        lost: returns whether a connection of the group has ended without being shut by us.
    """

    def __init__(
        self,
        inner: Work | WaitedOnThread,
        result: Any,
        failed: Callable[[Exception | None], CollectiveError],
        broken: Callable[[], bool],
        leave: Callable[[Work | WaitedOnThread], None],
        lost: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._inner: Work | WaitedOnThread | None = inner  # dropped at the end: it keeps torch's group alive
        self._result = result
        self._failed = failed
        self._broken = broken
        self._leave = leave
        self._lost = lost
        self._error: CollectiveError | None = None  # the error with which it ended

    def is_completed(self) -> bool:
        inner = self._inner
        return inner is None or inner.is_completed()

    def result(self) -> Any:
        return self._result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end, at most `timeout` (None or zero: the group's own). Raise `CollectiveError` if it failed.

        If the limit runs out, the group is aborted, and `wait` returns only when the operation can't write to the
        tensors any more.
        """
        if self._inner is not None:
            limit = timeout.total_seconds() if timeout else math.inf
            if isinstance(self._inner, WaitedOnThread):
                self._inner.begin(limit)
            self._error = self._end(self._inner, limit)
            self._inner = None
        if self._error is not None:
            raise self._error
        return True

    def _end(self, inner: Work | WaitedOnThread, limit: float) -> CollectiveError | None:
        """Wait for the end of the operation. Return its error, or None if it succeeded."""
        deadline = time.monotonic() + limit
        error = None
        looks = _LOOKS  # counted, not timed: after a SIGSTOP the other threads must get time, too
        while True:
            try:
                inner.wait(_LOOK if self._broken() else _limit(min(POLL, deadline - time.monotonic())))
                return error
            except RuntimeError:
                if inner.is_completed():
                    real = _outcome(inner)  # None if it succeeded just as the limit ran out
                    return error if real is None else error or self._failed(real)
            if self._broken() or self._lost():
                looks -= 1
                if looks == 0:
                    self._leave(inner)
                    return error or self._failed(None)
            elif time.monotonic() >= deadline:
                error = self._failed(None)

    def get_future(self) -> Future[Any]:
        """Return a future of the output tensors, which fails as ``wait`` does."""
        inner = self._inner
        if inner is None:
            return (DoneWork(self._result) if self._error is None else FailedWork(self._error)).get_future()
        return inner.get_future().then(self._checked)

    def _checked(self, future: Future[Any]) -> Any:
        try:
            return future.value()
        except RuntimeError as e:
            raise self._failed(e) from None


class WaitedOnThread:
    """A send or a receive of a torch group, on which another thread waits.

    If a wait on it times out, gloo closes the connection, and every other message between the two members is lost. So
    the thread waits on the operation for the longest limit that a caller may have, and callers wait for the thread.

    Args:
        inner: torch's handle.
        timeout: seconds that the thread waits at least.
        start: starts a thread that runs the given function, and returns it, or None if the process can start no more
            threads.
    """

    def __init__(
        self,
        inner: Work,
        timeout: float,
        start: Callable[[Callable[[], None]], threading.Thread | None] = _plain_thread,
    ) -> None:
        self._inner = inner
        self._timeout = timeout
        self._start = start
        self._ended = threading.Event()
        self._error: RuntimeError | None = None  # the operation's exception; read only once `_ended` is set
        self._begun = False  # whether `begin` was called
        self.thread: threading.Thread | None = None

    def begin(self, limit: float) -> None:
        """Start the thread, unless started. The caller waits at most `limit` seconds. Not safe for concurrent calls."""
        if self._begun:
            return
        self._begun = True
        self._timeout = self._timeout if limit == math.inf else max(self._timeout, limit)
        self.thread = self._start(self._run)
        if self.thread is None:
            self._error = RuntimeError("the process ends")
            self._ended.set()

    def is_completed(self) -> bool:
        return self._ended.is_set() or self._inner.is_completed()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raise RuntimeError if the operation failed, or hasn't ended within `timeout`. Call `begin` first."""
        if not self._ended.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError("not ended yet")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Future[Any]:
        return self._inner.get_future()

    def _run(self) -> None:
        try:
            self._inner.wait(timedelta(seconds=self._timeout))
        except RuntimeError as e:
            self._error = e.with_traceback(None)
        self._ended.set()


class AllWork(Work):
    """Several collectives as one handle. It waits for all of them within one timeout, then raises the first failure."""

    def __init__(self, works: Sequence[Work], result: Any) -> None:
        super().__init__()
        self._works = list(works)  # in the order of issue
        self._result = result  # value of the future

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        deadline = time.monotonic() + timeout.total_seconds() if timeout else None
        first: Exception | None = None
        good = True
        for work in self._works:
            try:
                good = bool(work.wait(_limit(deadline - time.monotonic())) if deadline else work.wait()) and good
            except Exception as e:
                first = first or e
        if first is not None:
            raise first
        return good

    def get_future(self) -> Future[Any]:
        done = torch.futures.collect_all([work.get_future() for work in self._works])

        def result(futures: Future[Any]) -> Any:
            for future in futures.value():
                future.value()  # raises if that collective failed
            return self._result

        return done.then(result)


def _limit(left: float) -> timedelta:
    """Return `left` seconds as a limit of at least 1 ms: torch counts in milliseconds, and 0 means no limit."""
    return timedelta(seconds=max(left, 0.001))


def _outcome(inner: Work | WaitedOnThread) -> Exception | None:
    """Return the exception of an operation that has ended, or None if it succeeded."""
    try:
        inner.wait()
    except RuntimeError as e:
        return e
    return None
