"""Deadlines of collectives on an accelerator, where ``wait()`` blocks a stream and no thread notices a hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from torch.distributed import Work
from torch.futures import Future

from torchft_x.errors import TorchftXError
from torchft_x.timing import POLL_FAST


class _Watched(NamedTuple):
    work: Work
    deadline: float  # monotonic
    late: Callable[[], object]


class Watch:
    """Watch that calls `late` for operations past their deadlines. Its thread runs only while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._running: list[_Watched] = []
        self._thread: threading.Thread | None = None

    def add(self, work: Work, limit: float, late: Callable[[], object]) -> None:
        """Watch `work`, and call `late` if it hasn't completed in `limit` seconds from now."""
        with self._lock:
            self._running.append(_Watched(work, time.monotonic() + limit, late))
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_on, name="torchft_x watch", daemon=True)
                self._thread.start()

    def _look_on(self) -> None:
        while True:
            with self._lock:
                self._running = [w for w in self._running if not _is_completed(w.work)]
                if not self._running:
                    self._thread = None
                    return
                now = time.monotonic()
                late = [w for w in self._running if w.deadline < now]
                self._running = [w for w in self._running if w.deadline >= now]
            for each in late:
                each.late()  # ends that operation's set of members, unless it has ended; the others stay watched
            time.sleep(POLL_FAST)


def _is_completed(work: Work) -> bool:
    try:
        return work.is_completed()
    except RuntimeError:
        return True  # it failed; its caller gets the error from `wait`


class StreamWork(Work):
    """Handle of a running collective on an accelerator."""

    def __init__(
        self,
        inner: Work,
        result: Any,
        failed: Callable[[Exception | None], TorchftXError],
        watch: Watch,
        error: Callable[[], TorchftXError | None],
    ) -> None:
        super().__init__()
        self._inner = inner
        self._result = result  # value of the future
        self._failed = failed  # ends the group and returns the error to raise; None: the collective is late
        self._watch = watch
        self._error = error  # returns the group's first failure, or None

    def is_completed(self) -> bool:
        return self._inner.is_completed()

    def result(self) -> Any:
        return self._result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make the current stream wait for the result.

        If it isn't complete within `timeout` (from now; None or zero: the group's own, from the start), the group is
        aborted, and `errored` returns the failure. Raises `CollectiveError` if it has failed already.
        """
        try:
            self._inner.wait()
        except RuntimeError as e:
            raise self._failed(e) from None
        if self._error() is not None:
            raise self._failed(None)
        if timeout is not None and timeout > timedelta(0):
            self._watch.add(self._inner, timeout.total_seconds(), lambda: self._failed(None))
        return True

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Future[Any]:
        return self._inner.get_future().then(self._checked)

    def _checked(self, future: Future[Any]) -> Any:
        try:
            value = future.value()
        except RuntimeError as e:
            raise self._failed(e) from None
        if self._error() is not None:
            raise self._failed(None)
        return value
