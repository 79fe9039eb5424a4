"""Handles of collectives: what ``wait()`` and ``get_future()`` of each kind of outcome do."""

from __future__ import annotations

import math
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
_LOOKS = 12  # while the group is broken, until an operation is left: others end within 15 ms with 100 MB on the way


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

    gloo forgets a send that waits for room in a connection when that connection breaks: the operation ends only at the group's
    timeout, though nobody will ever write into its tensors again. So a wait looks now and then whether the group is
    broken, and some time after that leaves the operation to itself. Not for a send or receive between two: gloo closes the
    connection under a wait that ends before it.

    Args:
        inner: torch's handle.
        result: value of the future.
        failed: called with what torch raised, or None if the limit given to ``wait`` ran out; it must break the group and
            return the exception to raise.
        broken: whether the group's connections have been shut.
        leave: takes over a handle that nobody waits for any more; torch's group must not be let go before it has ended.
        between_two: it is a send or a receive.
    """

    def __init__(
        self,
        inner: Work,
        result: Any,
        failed: Callable[[Exception | None], CollectiveError],
        broken: Callable[[], bool],
        leave: Callable[[Work], None],
        between_two: bool = False,
    ) -> None:
        super().__init__()
        self._inner: Work | None = inner  # let go at the end: it keeps torch's group alive
        self._result = result
        self._failed = failed
        self._broken = broken
        self._leave = leave
        self._between_two = between_two
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
            end = self._end_in_one if self._between_two else self._end
            self._error = end(self._inner, timeout.total_seconds() if timeout else math.inf)
            self._inner = None
        if self._error is not None:
            raise self._error
        return True

    def _end(self, inner: Work, limit: float) -> CollectiveError | None:
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
            if self._broken():
                looks -= 1
                if looks == 0:
                    self._leave(inner)
                    return error or self._failed(None)
            elif time.monotonic() >= deadline:
                error = self._failed(None)

    def _end_in_one(self, inner: Work, limit: float) -> CollectiveError | None:
        """The same without looks."""
        deadline = time.monotonic() + limit
        try:
            inner.wait() if limit == math.inf else inner.wait(_limit(limit))
        except RuntimeError as e:
            return self._failed(None if time.monotonic() >= deadline else e)
        return None

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


def _outcome(inner: Work) -> Exception | None:
    """How an operation that has ended did so."""
    try:
        inner.wait()
    except RuntimeError as e:
        return e
    return None
