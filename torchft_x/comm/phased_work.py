"""Handle of a collective in several phases (`comm.quantized`, `comm.slot_sum`), and the thread that drives them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from torchft_x.comm.work import DoneWork
from torchft_x.errors import CollectiveError

Phases = Generator[Work, None, None]
"""Generator that issues collectives, and yields each one that must have ended before it can go on."""


def start(
    phases: Phases,
    tensors: list[Tensor],
    pg: Any,
    stream: torch.Stream | None,
    still: Callable[[], bool] = lambda: True,
) -> Work:
    """Issue the first collectives of `phases`, and return their handle."""
    if stream is not None:
        stream.wait_stream(torch.accelerator.current_stream())
    work = PhasedWork(phases, tensors, stream, still)
    work._advance()
    if work.is_completed() and work._error is None and stream is None:
        return DoneWork(tensors)  # nothing to do
    if tensors and tensors[0].device.type != "cpu" and "gloo" not in pg.getBackendName():
        with contextlib.suppress(Exception):  # wait() raises it again
            work._drive(None)
    return work


class PhasedWork(Work):
    """Handle of a running collective. ``wait()`` drives its phases (see the module)."""

    def __init__(
        self, phases: Phases, tensors: list[Tensor], stream: torch.Stream | None, still: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._phases: Phases | None = phases  # remaining phases; None at the end
        self._pending: Work | None = None  # the collective that must end before the next phase
        self._tensors = tensors  # value of the future
        self._still = still  # returns whether the group has the same members
        self._stream = stream  # stream to work on; None: the current one
        self._error: Exception | None = None  # the error with which it ended

    def is_completed(self) -> bool:
        """Return whether it has ended. It makes no progress without ``wait()``."""
        return self._phases is None

    def result(self) -> Any:
        return self._tensors

    def wait(self, timeout: timedelta | None = None, *, each: timedelta | None = None) -> bool:
        """Run the remaining phases, and raise the error if one fails.

        They may take at most `timeout` in all, and `each` for one phase (None or zero: the group's own timeout, for
        each phase).
        """
        self._drive(timeout, each)
        if self._stream is not None:
            torch.accelerator.current_stream().wait_stream(self._stream)
        return True

    def get_future(self) -> Future[Any]:
        """Run the remaining phases, and return a future that is done."""
        future: Future[Any] = Future()
        try:
            self.wait()
            future.set_result(self._tensors)
        except Exception as e:
            future.set_exception(e)
        return future

    def _drive(self, timeout: timedelta | None, each: timedelta | None = None) -> None:
        deadline = time.monotonic() + timeout.total_seconds() if timeout else None
        while self._phases is not None:
            if deadline is None:
                self.advance(each)
            else:
                # Not zero, which would mean the group's own limit.
                left = timedelta(seconds=max(deadline - time.monotonic(), 0.001))
                self.advance(min(left, each) if each else left)
        if self._error is not None:
            raise self._error

    def advance(self, timeout: timedelta | None = None) -> None:
        """Wait for the pending collective, and go on to the next one. ``wait()`` raises the error."""
        if self._phases is None:
            return
        assert self._pending is not None
        try:
            self._pending.wait(timeout) if timeout else self._pending.wait()
        except Exception as e:
            self._end(e)
        else:
            self._advance()

    def _advance(self) -> None:
        """Run up to the next collective that must be waited for."""
        assert self._phases is not None
        try:
            if not self._still():
                raise CollectiveError("a reduction in phases was not finished: the group got other members meanwhile.")
            with torch.no_grad(), self._stream or contextlib.nullcontext():
                self._pending = next(self._phases)
        except StopIteration:
            self._end(None)
        except Exception as e:
            self._end(e)

    def _end(self, error: Exception | None) -> None:
        if self._phases is not None:
            self._phases.close()
        self._error, self._phases, self._pending = error, None, None
