"""Handles of collectives: what ``wait()`` and ``get_future()`` of each kind of outcome do."""

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

_USUAL = 0.1  # seconds between two looks whether the group is broken
_LOOK = timedelta(seconds=0.02)  # the same, once it is
BETWEEN_TWO = frozenset({"send", "recv", "recv_anysource"})  # operations that `WaitedOnThread` is for
_LOOKS = 12  # while the group is broken, until an operation is left: others end within 15 ms with 100 MB on the way


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
    """A running collective of a torch group; its failure is reported and told in our words.

    When a connection breaks, gloo forgets the message that is half sent or half received on it: the operation ends only at
    the group's timeout, though nobody will ever touch its tensors again. So a wait looks now and then whether the group
    is broken or a connection is lost, and some time after that leaves the operation to itself.

    Args:
        inner: torch's handle.
        result: value of the future.
        failed: called with what torch raised, or None if the limit given to ``wait`` ran out; it must break the group and
            return the exception to raise.
        broken: whether the group's connections have been shut.
        leave: takes over a handle that nobody waits for any more; torch's group must not be let go before it has ended.
        lost: whether a connection of the group has ended, though nobody shut it.
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
        self._inner: Work | WaitedOnThread | None = inner  # let go at the end: it keeps torch's group alive
        self._result = result
        self._failed = failed
        self._broken = broken
        self._leave = leave
        self._lost = lost
        self._error: CollectiveError | None = None  # how it ended, if badly

    def is_completed(self) -> bool:
        inner = self._inner
        return inner is None or inner.is_completed()

    def result(self) -> Any:
        return self._result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end, at most `timeout` (None or zero: the group's own). Raises `CollectiveError`.

        If the limit runs out the group is aborted, and this returns only when nothing writes into the tensors any more.
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
        """Wait for the end of the operation; how it ended, if badly."""
        deadline = time.monotonic() + limit
        error = None
        looks = _LOOKS  # counted, not measured: a process that was stopped has to give its other threads time, too
        while True:
            try:
                inner.wait(_LOOK if self._broken() else _limit(min(_USUAL, deadline - time.monotonic())))
                return error
            except RuntimeError:
                if inner.is_completed():
                    real = _outcome(inner)  # None: it succeeded just as the limit ran out
                    return error if real is None else error or self._failed(real)
            if self._broken() or self._lost():
                looks -= 1
                if looks == 0:
                    self._leave(inner)
                    return error or self._failed(None)
            elif time.monotonic() >= deadline:
                error = self._failed(None)

    def get_future(self) -> Future[Any]:
        """A future of the output tensors; fails as ``wait`` does."""
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
    """A send or a receive of a torch group, which another thread waits for.

    Under a wait that ends before the operation gloo closes the connection, and with it everything the two have to say to
    each other; so the thread waits as long as anybody may want to, and `wait` for the thread.

    Args:
        inner: torch's handle.
        timeout: seconds that the thread waits at least.
        start: starts the thread that runs a function, and returns it, or None if none can be started any more.
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
        self._error: RuntimeError | None = None  # what the operation raised; read after `_ended`
        self._begun = False  # the thread was asked for
        self.thread: threading.Thread | None = None

    def begin(self, limit: float) -> None:
        """Let the thread wait; nobody is going to wait for it for more than `limit` seconds. For one caller at a time."""
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
        """Raise RuntimeError if the operation failed, or hasn't ended within `timeout`. `begin` comes first."""
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
    """Several collectives as one. Waits for all, then raises the first failure."""

    def __init__(self, works: Sequence[Work], result: Any) -> None:
        super().__init__()
        self._works = list(works)  # in the order of issue
        self._result = result  # value of the future

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        first: Exception | None = None
        good = True
        for work in self._works:
            try:
                good = bool(work.wait(timeout) if timeout else work.wait()) and good
            except Exception as e:
                first = first or e
        if first is not None:
            raise first
        return good

    def get_future(self) -> Future[Any]:
        done = torch.futures.collect_all([work.get_future() for work in self._works])

        def result(futures: Future[Any]) -> Any:
            for future in futures.value():
                future.value()  # raises if that one failed
            return self._result

        return done.then(result)


def _limit(left: float) -> timedelta:
    """`left` seconds as a limit; torch counts in milliseconds, and takes none for no limit."""
    return timedelta(seconds=max(left, 0.001))


def _outcome(inner: Work | WaitedOnThread) -> Exception | None:
    """How an operation that has ended did so."""
    try:
        inner.wait()
    except RuntimeError as e:
        return e
    return None
