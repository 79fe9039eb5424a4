"""Errors and futures of the current step, for the script."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

from torch.futures import Future

Report = Callable[[Exception], None]


class ExceptionWithTraceback(Exception):
    """Error with its traceback as text, because `errored` may pass it to another thread."""

    def __init__(self, e: Exception) -> None:
        super().__init__(e)
        self.original_exception = e
        self.stack_trace = "".join(traceback.format_exception(type(e), e, e.__traceback__))

    def __str__(self) -> str:
        return str(self.original_exception)


def wrap_future(fut: Future[Any], default: Any, timeout: float, report: Report) -> Future[Any]:
    """Return a future with the value of `fut`, or with `default` if `fut` fails or takes over `timeout` seconds."""
    out: Future[Any] = Future()
    lock = threading.Lock()  # the timer and the future may end together

    def finish(value: Any, error: Exception | None) -> None:
        with lock:
            if out.done():
                return
            if error is not None:
                report(error)
            out.set_result(value)

    def done(result: Future[Any]) -> None:
        timer.cancel()
        try:
            finish(result.value(), None)
        except Exception as e:
            finish(default, e)

    timer = threading.Timer(timeout, lambda: finish(default, TimeoutError(f"a future took more than {timeout:g} s")))
    timer.daemon = True
    timer.start()
    fut.add_done_callback(done)
    return out
