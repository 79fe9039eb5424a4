"""The reductions of the step in hand, and the local gradients with which they can be done again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.futures import Future

from torchft_x.comm.quantized.agree_format import agree
from torchft_x.comm.quantized.collectives import reduce_quantized
from torchft_x.comm.quantized.format import Format
from torchft_x.comm.quantized.work import QuantizedWork
from torchft_x.errors import CollectiveError, ConfigError, DeadlineError, UnreachableError
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.tensor_digest import digest

TRANSPORT = (CollectiveError, DeadlineError, UnreachableError)
"""What a lost member or a broken connection looks like: the gradients are as good as before."""


class Kept(Protocol):
    """Who holds the local gradients of a pass."""

    numbered: bool
    """Whether they are of data that the script may have chosen by this group's number in the quorum (I9)."""

    def intact(self) -> bool:
        """Whether they can be reduced again: they are kept, and nobody has touched their result."""

    def reduce_again(self) -> bool:
        """Reduce them in the quorum in hand. False: it failed, and was reported."""


class ManagedWork(dist.Work):
    """A reduction that never raises: ``wait()`` says whether it worked; if not, the step is dropped at its commit.

    Args:
        inner: the process group's handle; None: it failed before it was issued.
        tensor: what is reduced, in place.
        context: says how long `wait` may take, unless it is given a shorter time, and hears of the error.
        quorum_id: in which it is reduced.
        turn: take the result's digest, for the vote between the groups; see `digest`. None: take none.

    A quantised reduction goes in chunks; there the timeout is of each phase of a chunk, so it needn't grow with the tensor.
    """

    def __init__(
        self, inner: Any, tensor: torch.Tensor, context: RankContext, quorum_id: int, *, turn: int | None = None
    ) -> None:
        super().__init__()
        self._inner = inner  # dropped when it is done
        self._tensor = tensor  # value of the future
        self._context = context
        self._quorum_id = quorum_id
        self._turn = turn
        self.digest = 0  # of the result, as it was when it came
        self._lock = threading.Lock()  # `wait` may be called by the reducer and by should_commit
        self.good: bool | None = None if inner is not None else False  # outcome, None while it runs

    def wait(self, timeout: timedelta | None = None) -> bool:
        with self._lock:
            if self.good is None:
                c, began = self._context, time.monotonic()
                limit = timedelta(seconds=c.waits.wait(began, connected=c.connection.link.connected))
                try:
                    if isinstance(self._inner, QuantizedWork):
                        good = self._inner.wait(timeout, each=limit)
                    else:
                        good = bool(self._inner.wait(min(timeout, limit) if timeout else limit))
                except Exception as e:
                    good = False
                    c.failures.fail(c.waits.explain(e, time.monotonic() - began), self._quorum_id)
                finally:
                    c.waits.work(time.monotonic())
                if good and self._turn is not None:
                    self.digest = digest(self._tensor, self._turn)
                self._inner, self.good = None, good
            return self.good

    def is_completed(self) -> bool:
        inner = self._inner
        return inner is None or bool(inner.is_completed())

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
                self._context.failures.fail(e, self._quorum_id)
            return self._tensor

        return inner.get_future().then(done)


class Reductions:
    """See the module. Used by the training thread.

    Args:
        pg: the process group between the groups.
        keeps: a step that failed may be reduced again.
    """

    def __init__(self, context: RankContext, pg: Any, *, keeps: bool) -> None:
        self.works: list[ManagedWork] = []  # of the step in hand; awaited before the vote
        self._context = context
        self._pg = pg
        self._keeps = keeps  # fixed
        self._kept: list[Kept] = []  # passes of the step in hand
        self._kept_works = 0  # reductions that belong to them
        self._unwanted = False  # the script is against the step's gradients
        self._agreed = 0  # configuration of the process group whose members quantise alike
        self._counting = threading.Lock()  # guards the two below: whoever drives a quantised reduction counts, too
        self._began = 0.0  # monotonic seconds: the step's first reduction was issued
        self.took = (
            0.0  # seconds from then until the last of them had ended, once `wait` has returned; 0.0: there was none
        )
        self._sent = 0  # see `bytes_sent`
        self._told = 0  # as much of it `take_sent` has told

    def clear(self) -> None:
        """A step begins."""
        self.works.clear()
        self._kept, self._kept_works, self._unwanted, self.took = [], 0, False, 0.0

    def reduce(
        self,
        tensor: torch.Tensor,
        op: Any,
        fmt: Format | None,
        *,
        possible: bool,
        lost: torch.Tensor | None = None,
        before: Callable[[int, int], None] | None = None,
    ) -> ManagedWork:
        """Start a reduction in the quorum in hand, unless it is not `possible`. See `Manager.allreduce`.

        Raises `ConfigError` if the groups quantise differently.
        """
        c = self._context
        if not self.works:
            self._began = time.monotonic()
        with c.failures.lock:
            quorum_id, rank, size, failed = c.step.quorum_id, c.step.rank, c.step.size, c.step.error is not None
            turn = c.step.top.step if c.options.commit_vote else None
        inner = None
        if possible and not failed:
            try:
                if rank is None:
                    with torch.no_grad():
                        fill_neutral(tensor, op)
                if fmt is not None:
                    inner = self._issue_quantized(tensor, op, fmt, rank, size, quorum_id, lost, before)
                elif before is not None and rank is not None:
                    raise ConfigError(
                        "`before` is for quantised reductions; in full precision make the values beforehand."
                    )
                else:
                    inner = self._issue(tensor, op, rank, size)
            except Exception as e:
                c.failures.fail(e, quorum_id)
                if isinstance(e, ConfigError):
                    raise
        managed = ManagedWork(inner, tensor, c, quorum_id, turn=turn)
        self.works.append(managed)
        return managed

    def _issue(self, tensor: torch.Tensor, op: Any, rank: int | None, participants: int) -> Any:
        """Start the all-reduce. AVG is done by us: the group holds more members than contribute."""
        opts = dist.AllreduceOptions()
        if op == ReduceOp.AVG:
            if rank is not None:
                with torch.no_grad():
                    tensor.mul_(1.0 / participants)
            op = ReduceOp.SUM
        opts.reduceOp = op
        self._count(ring_bytes(tensor.nbytes, self._pg.size()))
        return self._pg.allreduce([tensor], opts)

    def _issue_quantized(
        self, tensor: torch.Tensor, op: Any, fmt: Format, rank: int | None, participants: int, quorum_id: int,
        lost: torch.Tensor | None, before: Callable[[int, int], None] | None,
    ) -> Any:  # fmt: skip
        """The same with few bits for a value. Of AVG the sum is scaled, so that what is encoded is `tensor` itself."""
        step = self._context.step
        if self._agreed != (config := self._context.failures.config_id):
            agree(self._pg, fmt, tensor.device, contributes=rank is not None)
            self._agreed = config
        return reduce_quantized(
            [tensor], fmt, self._pg, 1.0 / participants if op == ReduceOp.AVG else 1.0, lost=lost,
            before=None if rank is None else before, sent=self._count, still=lambda: step.quorum_id == quorum_id,
        )  # fmt: skip

    def _count(self, nbytes: int) -> None:
        with self._counting:
            self._sent += nbytes

    @property
    def bytes_sent(self) -> int:
        """Payload given to the process group for other members: without headers, and nothing for a group of one.

        Exact for quantised reductions; for others what a ring all-reduce sends (`ring_bytes`), which is the least that
        any does. Attempts that failed count as well.
        """
        return self._sent

    def take_sent(self) -> int:
        """As many of these bytes as were sent since the last call."""
        with self._counting:
            new, self._told = self._sent - self._told, self._sent
            return new

    def wait(self) -> None:
        """Wait for all of them; what failed is reported."""
        for managed in self.works:
            if managed.good is None:
                managed.wait()
        if self.works:
            self.took = time.monotonic() - self._began
        if torch.accelerator.is_available():
            torch.accelerator.current_stream().synchronize()  # so that asynchronous errors are seen before the vote
        error = self._pg.errored()
        if error is not None:
            self._context.failures.fail(error)

    # --- again --------------------------------------------------------------------------------------------------------

    def keep(self, kept: Kept, works: int) -> bool:
        """A pass ends: its newest `works` reductions can be done again by `kept`. False: its gradients aren't wanted."""
        again = kept in self._kept  # a second pass over the same parameters has added to the first one's result
        self._kept = [] if again else [*self._kept, kept]
        self._kept_works = 0 if again else self._kept_works + works
        return self._keeps

    def object(self, error: Exception) -> None:
        """The script is against the step, which may have failed before for another reason."""
        self._unwanted = self._unwanted or not isinstance(error, TRANSPORT)

    def may_repeat(self, error: Exception | None) -> bool:
        """Whether a step that failed with `error` can be reduced again unseen. All its reductions must be among the kept
        ones: a group that computes the step anew issues them all, in the same order."""
        good = not self._unwanted and (error is None or isinstance(error, TRANSPORT))
        whole = bool(self._kept) and self._kept_works == len(self.works)
        return self._keeps and good and whole and all(k.intact() for k in self._kept)

    @property
    def numbered(self) -> bool:
        """Whether what is kept is of data that the script may have chosen by its number (I9)."""
        return any(k.numbered for k in self._kept)

    def repeat(self) -> None:
        """Reduce what is kept again, in the quorum in hand."""
        self.works.clear()
        for kept in self._kept:
            if not kept.reduce_again():
                break
        self._kept_works = len(self.works)


def ring_bytes(nbytes: int, members: int) -> int:
    """What each member of a ring all-reduce of a tensor of `nbytes` sends."""
    return 2 * (members - 1) * nbytes // members


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
