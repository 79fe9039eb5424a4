"""Handles of collectives: what ``wait()`` and ``get_future()`` of each kind of outcome do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work
from torch.futures import Future

from torchft_x.errors import CollectiveError


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

    `failed(error)` is called with what torch raised, or None if the limit given to ``wait`` ran out; it must stop the
    operation and return the exception to raise.
    """

    def __init__(self, inner: Work, result: Any, failed: Callable[[Exception | None], CollectiveError]) -> None:
        super().__init__()
        self._inner: Work | None = inner  # let go at the end: it keeps torch's group alive
        self._result = result  # value of the future
        self._failed = failed  # see above
        self._error: CollectiveError | None = None  # how it ended, if badly

    def is_completed(self) -> bool:
        inner = self._inner
        return inner is None or inner.is_completed()

    def result(self) -> Any:
        return self._result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end, at most `timeout` (None or zero: the group's own). Raises `CollectiveError`.

        If the limit runs out the group is aborted, and this returns only when the operation has ended: nothing writes
        into the tensors afterwards.
        """
        inner = self._inner
        if inner is not None:
            try:
                inner.wait(timeout) if timeout else inner.wait()
            except RuntimeError:
                if not inner.is_completed():
                    self._error = self._failed(None)
                    _outcome(inner)
                elif (real := _outcome(inner)) is not None:  # else it succeeded just as the limit ran out
                    self._error = self._failed(real)
            self._inner = None
        if self._error is not None:
            raise self._error
        return True

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


def _outcome(inner: Work) -> Exception | None:
    """How an operation ended; waits for the end, which is near (it is stopped) or bounded by the group's timeout."""
    try:
        inner.wait()
    except RuntimeError as e:
        return e
    return None
