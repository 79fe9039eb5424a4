"""Handles of managed reductions, and what a rank without gradients puts into one."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.futures import Future

from torchft_x.comm.quantized.bytes_sent import BytesSent, ring_bytes
from torchft_x.comm.quantized.collectives import reduce_quantized
from torchft_x.comm.quantized.format import Format
from torchft_x.comm.quantized.work import QuantizedWork
from torchft_x.errors import ConfigError
from torchft_x.train.context.digest import digest
from torchft_x.train.context.waits import PeerWaits

Report = Callable[[Exception], None]


class ExceptionWithTraceback(Exception):
    """An error with the place it came from, as text: `errored` hands it to another thread."""

    def __init__(self, e: Exception) -> None:
        super().__init__(e)
        self.original_exception = e
        self.stack_trace = "".join(traceback.format_exception(type(e), e, e.__traceback__))

    def __str__(self) -> str:
        return str(self.original_exception)


class ManagedWork(dist.Work):
    """A reduction that never raises: ``wait()`` says whether it worked; if not, the step is dropped at its commit.

    Args:
        inner: the process group's handle; None: it failed before it was issued.
        tensor: what is reduced, in place.
        waiting: says how long `wait` may take, unless it is given a shorter time.
        report: called with the error.
        turn: take the result's digest, for the vote between the groups; see `digest`. None: take none.

    A quantised reduction goes in chunks; there the timeout is of each phase of a chunk, so it needn't grow with the tensor.
    """

    def __init__(
        self, inner: Any, tensor: torch.Tensor, waiting: PeerWaits, report: Report, *, turn: int | None = None
    ) -> None:
        super().__init__()
        self._inner = inner  # dropped when it is done
        self._tensor = tensor  # value of the future
        self._waiting = waiting
        self._report = report
        self._turn = turn
        self.digest = 0  # of the result, as it was when it came
        self._lock = threading.Lock()  # `wait` may be called by the reducer and by should_commit
        self._good: bool | None = None if inner is not None else False  # outcome, None while it runs

    def wait(self, timeout: timedelta | None = None) -> bool:
        with self._lock:
            if self._good is None:
                limit, began = timedelta(seconds=self._waiting.begin()), time.monotonic()
                try:
                    if isinstance(self._inner, QuantizedWork):
                        self._good = self._inner.wait(timeout, each=limit)
                    else:
                        self._good = bool(self._inner.wait(min(timeout, limit) if timeout else limit))
                except Exception as e:
                    self._good = False
                    self._report(self._waiting.explain(e, time.monotonic() - began))
                finally:
                    self._waiting.end()
                if self._good and self._turn is not None:
                    self.digest = digest(self._tensor, self._turn)
                self._inner = None
            return self._good

    def is_completed(self) -> bool:
        return self._good is not None or bool(self._inner.is_completed())

    def get_future(self) -> Future[torch.Tensor]:
        """Completes with the tensor, also if the reduction failed: `errored` tells."""
        inner = self._inner
        if inner is None:
            future: Future[torch.Tensor] = Future()
            future.set_result(self._tensor)
            return future

        def done(result: Future[Any]) -> torch.Tensor:
            try:
                result.value()
            except Exception as e:
                self._report(e)
            return self._tensor

        return inner.get_future().then(done)


def issue(
    pg: Any,
    tensor: torch.Tensor,
    op: Any,
    *,
    contributes: bool,
    participants: int,
    fmt: Format | None = None,
    lost: torch.Tensor | None = None,
    before: Callable[[int, int], None] | None = None,
    sent: BytesSent | None = None,
    still: Callable[[], bool] = lambda: True,
) -> Any:
    """Start the all-reduce of `tensor` on `pg`. AVG is done by us: the group holds more members than contribute.

    `fmt`: how values are written on the wire; None: as they are. `lost`, `before`: see `reduce_quantized`. `sent`: counts what goes
    to others. `still`: whether this quorum is in hand. Of a quantised AVG the sum is scaled, so that what is encoded is
    `tensor` itself.
    """
    if not contributes:
        with torch.no_grad():
            fill_neutral(tensor, op)
    elif before is not None and fmt is None:
        raise ConfigError("`before` is for quantised reductions; in full precision make the values beforehand.")
    elif op == ReduceOp.AVG and fmt is None:
        with torch.no_grad():
            tensor.mul_(1.0 / participants)
    if fmt is not None:
        scale = 1.0 / participants if op == ReduceOp.AVG else 1.0
        before = before if contributes else None
        return reduce_quantized([tensor], fmt, pg, scale, lost=lost, before=before, sent=sent, still=still)
    if sent is not None:
        sent.add(ring_bytes(tensor.nbytes, pg.size()))
    opts = dist.AllreduceOptions()
    opts.reduceOp = ReduceOp.SUM if op == ReduceOp.AVG else op
    return pg.allreduce([tensor], opts)


def wrap_future(fut: Future[Any], default: Any, timeout: float, report: Report) -> Future[Any]:
    """A future that completes with `fut`'s value, or with `default` if `fut` fails or takes over `timeout` seconds."""
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


def fill_neutral(tensor: torch.Tensor, op: Any) -> None:
    """Overwrite `tensor` with what changes nothing in a reduction with `op`."""
    if op == ReduceOp.MAX:
        tensor.fill_(_limits(tensor).min)
    elif op == ReduceOp.MIN:
        tensor.fill_(_limits(tensor).max)
    elif op == ReduceOp.PRODUCT:
        tensor.fill_(1)
    elif op == ReduceOp.BAND:
        tensor.fill_(-1 if tensor.dtype.is_signed else _limits(tensor).max)
    else:
        tensor.zero_()


def _limits(tensor: torch.Tensor) -> Any:
    return torch.finfo(tensor.dtype) if tensor.dtype.is_floating_point else torch.iinfo(tensor.dtype)


class Contribution:
    """What this rank's gradients are multiplied with before the sum: 1/participants, or 0 for who sends zeros."""

    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __repr__(self) -> str:
        return f"Contribution({self.scale})"
