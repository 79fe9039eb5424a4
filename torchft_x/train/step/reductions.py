"""The reductions of the current step, and the local gradients with which they can be repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.futures import Future

from torchft_x.comm.phased_work import PhasedWork
from torchft_x.comm.quantized.collectives import agree, reduce_quantized
from torchft_x.comm.quantized.format import Format
from torchft_x.comm.slot_sum import Scratch, reduce_nodes
from torchft_x.core.data.reduction_tree import Node
from torchft_x.errors import CollectiveError, ConfigError, DeadlineError, UnreachableError
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.tensor_digest import digest

TRANSPORT = (CollectiveError, DeadlineError, UnreachableError)
"""Errors that a lost member or a broken connection causes. The local gradients stay valid."""


class LocalGradients(Protocol):
    """Interface to the local gradients of a pass, which `Reductions` may ask to reduce again."""

    numbered: bool
    """Whether the gradients are of data that the script may have chosen by this group's number in the quorum (I9)."""

    def intact(self) -> bool:
        """Return whether the gradients can be reduced again: they are kept, and nothing has changed their result."""

    def reduce_again(self) -> bool:
        """Reduce the gradients in the current quorum. Return False if that failed; the error was then reported."""


class ManagedWork(dist.Work):
    """Handle of a reduction that never raises. ``wait()`` returns whether it succeeded; if not, the step is dropped.

    Args:
        inner: the process group's handle; None if the reduction failed before it was issued.
        tensor: the tensor that is reduced in place.
        context: bounds the time of `wait`, unless `wait` is given a shorter one, and records the error.
        quorum_id: the quorum in which the tensor is reduced.
        turn: number with which the result's `digest` is computed for the vote between the groups; None computes none.

    A quantised reduction goes in chunks. Its timeout applies to each phase of a chunk, so it needn't grow with the
    tensor.
    """

    def __init__(
        self, inner: Any, tensor: torch.Tensor, context: RankContext, quorum_id: int, *, turn: int | None = None
    ) -> None:
        super().__init__()
        self._inner = inner  # None once the reduction has ended
        self._tensor = tensor  # also the value of the future
        self._context = context
        self._quorum_id = quorum_id
        self._turn = turn
        self.digest = 0  # digest of the result, computed when it came
        self._began = 0.0  # monotonic seconds when the first wait began; 0.0 before
        self._lock = threading.Lock()  # `wait` may be called by the reducer and by should_commit
        self.good: bool | None = None if inner is not None else False  # outcome, None while it runs

    def advance(self) -> None:
        """Run the next phase of a reduction that has several, so that it overlaps with other reductions.

        `wait` reports its error.
        """
        with self._lock:
            if self.good is None and isinstance(self._inner, PhasedWork):
                self._inner.advance(self._limit())
                self._context.waits.end_wait(time.monotonic())

    def wait(self, timeout: timedelta | None = None) -> bool:
        with self._lock:
            if self.good is None:
                c, limit = self._context, self._limit()
                try:
                    if isinstance(self._inner, PhasedWork):
                        good = self._inner.wait(timeout, each=limit)
                    else:
                        good = bool(self._inner.wait(min(timeout, limit) if timeout else limit))
                except Exception as e:
                    good = False
                    c.failures.fail(c.waits.explain(e, time.monotonic() - self._began), self._quorum_id)
                finally:
                    c.waits.end_wait(time.monotonic())
                if good and self._turn is not None:
                    self.digest = digest(self._tensor, self._turn)
                self._inner, self.good = None, good
            return self.good

    def _limit(self) -> timedelta:
        """Begin to wait for other groups. Return how long."""
        c, now = self._context, time.monotonic()
        self._began = self._began or now
        return timedelta(seconds=c.waits.start_wait(now, connected=c.connection.link.connected))

    def is_completed(self) -> bool:
        inner = self._inner
        return inner is None or bool(inner.is_completed())

    def get_future(self) -> Future[torch.Tensor]:
        """Return a future that completes with the tensor, even if the reduction failed (`Manager.errored`)."""
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
    """Reductions of the current step. Issues them, waits for them and repeats them. Used by the training thread.

    Args:
        pg: the process group between the groups.
        keeps: whether a step that failed may be reduced again.
    """

    def __init__(self, context: RankContext, pg: Any, *, keeps: bool) -> None:
        self.works: list[ManagedWork] = []  # reductions of the current step; awaited before the vote
        self._context = context
        self._pg = pg
        self._keeps = keeps
        self._kept: list[LocalGradients] = []  # passes of the current step
        self._kept_works = 0  # number of reductions that belong to `_kept`
        self._unwanted = False  # the script has rejected the step's gradients
        self._agreed = 0  # config id of the process group whose members agreed on the format
        self._counting = threading.Lock()  # guards the next two: threads of quantised reductions count too
        self.bytes_sent = 0  # bytes of payload given to the process group for other members (`Manager.bytes_sent`)
        self._taken = 0  # bytes that `take_sent` has returned so far
        self._began = 0.0  # monotonic seconds when the step's first reduction was issued
        self.took = 0.0  # seconds from `_began` until `wait` saw the last reduction end; 0.0 if there was none

    def clear(self) -> None:
        """Forget the reductions and gradients of the last step."""
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
    ) -> ManagedWork:
        """Start a reduction in the current quorum if it is `possible`. Arguments as in `Manager.allreduce`.

        Raises `ConfigError` if the groups quantise differently.
        """

        def issue(rank: int | None, size: int, quorum_id: int) -> Any:
            if rank is None:
                with torch.no_grad():
                    fill_neutral(tensor, op)
            if fmt is not None:
                return self._issue_quantized(tensor, op, fmt, rank, size, quorum_id, lost)
            return self._issue(tensor, op, rank, size)

        return self._start(tensor, issue, possible=possible)

    def sum_slots(
        self,
        out: torch.Tensor,
        values: Sequence[torch.Tensor],
        nodes: Sequence[Sequence[Node]],
        slots: int,
        scratch: Scratch,
        *,
        possible: bool,
    ) -> ManagedWork:
        """Start the sum of `slots` slots into `out`. `values`: this rank's nodes. `nodes`: those of each member."""
        step = self._context.step

        def issue(rank: int | None, size: int, quorum_id: int) -> Any:
            still = lambda: step.quorum_id == quorum_id  # noqa: E731
            return reduce_nodes(out, values, nodes, slots, self._pg, scratch, self._count, still)

        return self._start(out, issue, possible=possible)

    def _start(
        self, tensor: torch.Tensor, issue: Callable[[int | None, int, int], Any], *, possible: bool
    ) -> ManagedWork:
        """Issue a reduction of `tensor` in the current quorum: `issue(rank, participants, quorum id)`."""
        c = self._context
        if not self.works:
            self._began = time.monotonic()
        with c.failures.lock:
            quorum_id, rank, size, failed = c.step.quorum_id, c.step.rank, c.step.size, c.step.error is not None
            turn = c.step.top.step if c.options.commit_vote else None
        inner = None
        if possible and not failed:
            try:
                inner = issue(rank, size, quorum_id)
            except Exception as e:
                c.failures.fail(e, quorum_id)
                if isinstance(e, ConfigError):
                    raise
        managed = ManagedWork(inner, tensor, c, quorum_id, turn=turn)
        self.works.append(managed)
        return managed

    def _issue(self, tensor: torch.Tensor, op: Any, rank: int | None, participants: int) -> Any:
        """Start the all-reduce. AVG is divided here, because not all members of the process group contribute."""
        opts = dist.AllreduceOptions()
        if op == ReduceOp.AVG:
            if rank is not None:
                with torch.no_grad():
                    tensor.mul_(1.0 / participants)
            op = ReduceOp.SUM
        opts.reduceOp = op
        plan = self._context.failures.plan
        assert plan is not None, "its quorum has come"
        self._count(ring_bytes(tensor.nbytes, plan.replica_world_size))
        return self._pg.allreduce([tensor], opts)

    def _issue_quantized(
        self, tensor: torch.Tensor, op: Any, fmt: Format, rank: int | None, participants: int, quorum_id: int,
        lost: torch.Tensor | None,
    ) -> Any:  # fmt: skip
        """Start a quantised all-reduce. AVG scales the sum, so that the values of `tensor` itself are encoded."""
        step = self._context.step
        if self._agreed != (config := self._context.failures.config_id):
            agree(self._pg, fmt, tensor.device, contributes=rank is not None)
            self._agreed = config
        return reduce_quantized(
            [tensor], fmt, self._pg, 1.0 / participants if op == ReduceOp.AVG else 1.0, lost=lost,
            sent=self._count, still=lambda: step.quorum_id == quorum_id,
        )  # fmt: skip

    def _count(self, nbytes: int) -> None:
        with self._counting:
            self.bytes_sent += nbytes

    def take_sent(self) -> int:
        """Return the bytes that were sent since the last call."""
        with self._counting:
            new, self._taken = self.bytes_sent - self._taken, self.bytes_sent
            return new

    def wait(self) -> None:
        """Wait for all reductions of the step, and report the errors."""
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

    def has(self, kept: LocalGradients) -> bool:
        """Return whether a pass of `kept` has ended in this step."""
        return kept in self._kept

    def keep(self, kept: LocalGradients, works: int) -> bool:
        """Record that `kept` can repeat the newest `works` reductions. Return whether it must keep its gradients."""
        again = self.has(kept)  # a second pass over the same parameters has added to the first result
        self._kept = [] if again else [*self._kept, kept]
        self._kept_works = 0 if again else self._kept_works + works
        return self._keeps

    def reject_step(self, error: Exception) -> None:
        """Record that the script rejects the step, which may have failed before for another reason."""
        self._unwanted = self._unwanted or not isinstance(error, TRANSPORT)

    def may_repeat(self, error: Exception | None) -> bool:
        """Return whether a step that failed with `error` can be reduced again without the script.

        All its reductions must be kept, because a group that computes the step anew issues all of them in the same
        order.
        """
        good = not self._unwanted and (error is None or isinstance(error, TRANSPORT))
        whole = bool(self._kept) and self._kept_works == len(self.works)
        return self._keeps and good and whole and all(k.intact() for k in self._kept)

    @property
    def numbered(self) -> bool:
        """Whether kept gradients are of data that the script may have chosen by its number (I9)."""
        return any(k.numbered for k in self._kept)

    def repeat(self) -> None:
        """Reduce the kept gradients again, in the current quorum."""
        self.works.clear()
        for kept in self._kept:
            if not kept.reduce_again():
                break
        self._kept_works = len(self.works)


def ring_bytes(nbytes: int, members: int) -> int:
    """Return the bytes that each member of a ring all-reduce sends for a tensor of `nbytes`."""
    return 2 * (members - 1) * nbytes // members


def fill_neutral(tensor: torch.Tensor, op: Any) -> None:
    """Fill `tensor` with the neutral element of `op`."""
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
