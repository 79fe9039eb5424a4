"""Averages gradients over the replica groups while backward still runs. It never raises in backward nor hangs it.

A pass, from the first gradient of a synchronised backward to its end::

    gradient ready -> scaled copy into its place in a flat buffer -> bucket full, and all before it launched: all-reduce
    (a model of one bucket on a CPU: at the end of backward, in one go)
    end of backward -> zeros for missing gradients, launch the rest -> wait for all -> p.grad = view of the flat buffer

* ``p.grad`` as autograd left it *is* the retained local gradient: no copy is made. It remains in place if a reduction
  fails (the step is then dropped), and it is held until the next forward. Freeing it earlier, between the reductions
  and the optimizer, costs 10-20 % of a step in page faults.
* The scale 1/participants is fused into the copy, before the sum, as in torch's DDP, so that the bits are the same.
* A parameter without gradient contributes zeros. The last bucket carries one flag per parameter. A parameter that got
  no gradient in *any* group thus keeps ``grad = None``, and all optimizers skip it alike.
* ``zero_grad(set_to_none=False)`` and repeated backwards leave ``p.grad`` in the flat buffers; the next pass then
  reduces into a second set.
* If steps are reproducible, the gradient of each slot is taken by itself, at the end of its backward, and summed in the order
  of a tree (`core.data.reduction_tree`). Nothing is sent before the last slot's end; a step's only slot is sent as above.
* For a parameter that is sharded within the group (DTensor) only this rank's shard is reduced. Rank r reduces with rank
  r of the other groups.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn import Parameter

from torchft_x.comm.slot_sum import Scratch, SlotSums
from torchft_x.errors import ConfigError, StepError
from torchft_x.train.ddp.buckets import Bucket, FlatBuffers, buckets_by_index
from torchft_x.train.ddp.gradient_steps import GradientSteps
from torchft_x.train.ddp.shards import local_grad
from torchft_x.train.step.reductions import ManagedWork
from torchft_x.transfer.format.flatten import is_dtensor

logger = logging.getLogger(__name__)

_AVG, _SUM = dist.ReduceOp.AVG, dist.ReduceOp.SUM


class Reducer:
    """Gradient reducer of one model. Hooks its parameters, and owns the flat buffers and the retained local gradients.

    Args:
        steps: starts the reductions and ends each pass.
        params: all parameters that need gradients, in the order of ``module.parameters()``.
        buckets: result of `plan_buckets` for this rank's shards of the same parameters.
    """

    numbered = True

    def __init__(self, steps: GradientSteps, params: Sequence[torch.nn.Parameter], buckets: Sequence[Bucket]) -> None:
        self.synchronise = True  # False inside no_sync: gradients only accumulate
        self._steps = steps
        self._params = list(params)
        self.buckets = tuple(buckets)
        self._bucket_of = buckets_by_index(buckets)  # by parameter: bucket index, and whether the gradient is small
        self._inside = [[s.index for s in b.slots] for b in buckets]  # indices of the parameters of each bucket
        self._small = [[s.index for s in b.small] for b in buckets]  # the small ones, copied together
        self._num_small = [b.num_small for b in buckets]
        # A single bucket is sent after the last gradient: on a CPU nothing is gained by taking gradients as they come.
        self._at_once = len(buckets) == 1 and all(type(p) is Parameter and p.device.type == "cpu" for p in params)
        self._flats = [FlatBuffers(buckets, self._params)]  # one set, or two if the script accumulates into p.grad
        self._current = 0  # index of the set of the current or last pass
        self._lock = threading.Lock()  # guards the pass, because each device has a thread that runs hooks
        self._armed = False  # a pass is open
        self._local: list[torch.Tensor | None] = [None] * len(params)  # retained local gradients, by parameter
        self._missing: list[int] = []  # number of gradients still to come, by bucket
        self._next = 0  # first bucket that was not launched; all groups launch in this order
        self._works: list[Any] = []  # handles of the launched buckets
        self._ending = False  # the pass has ended, but backward has not returned
        self._versions: list[int] | None = None  # flat buffers' versions when they became p.grad; None before
        self._only_slot = False  # the pass is that of the step's only slot here, if steps are reproducible
        self._in_slot = False  # a backward runs whose slot is not the last one of the step
        self._sums = SlotSums()  # slots of the current or last step, if steps are reproducible
        self._sharded = any(map(is_dtensor, params))
        self._left: Sequence[torch.Tensor | None] = ()  # sums of the left sibling, which backward found in ``p.grad``
        self._came: set[int] = set()  # indices of parameters with a gradient in this slot
        self._nodes: list[FlatBuffers] = []  # these sums in flat buffers
        self._more: list[FlatBuffers] = []  # buffers for all of them but the first
        self._scratch = [Scratch() for _ in buckets]
        self._all_came = False  # this rank has contributed all gradients, so every flag is set
        self._scale: float | None = None  # 1/participants; 0 if this rank contributes zeros; None before the quorum
        # Not FSDP's `set_all_reduce_hook`: its buffer holds only what got a gradient in this group, so that groups would
        # reduce different sizes; and it comes before the division, the cast and the copy to the CPU (offload).
        for i, p in enumerate(self._params):
            p.register_post_accumulate_grad_hook(functools.partial(self._ready, i))

    @property
    def reproducible(self) -> bool:
        """Whether the slots of the current step are summed in a fixed order."""
        return self._steps.data.reproducible

    def release(self) -> None:
        """Drop the last pass's local gradients when a forward begins; close a pass that a failed backward left open."""
        if self._armed and torch._C._current_graph_task_id() != -1:
            return  # recomputation inside backward
        self._armed = False
        self._local = [None] * len(self._params)
        self._versions = None
        if not torch.compiler.is_compiling() and self._steps.data.reproducible:
            self._start_sums()

    def intact(self) -> bool:
        """Return whether the local gradients are kept and the script has not changed their average (clipped, unscaled).

        Only then can they be reduced again without any difference for the script.
        """
        if self._ending or self._versions is None:
            return self._ending
        flats = self._flats[self._current]
        same = [f._version for f in flats.flat] == self._versions
        return same and all(p.grad is None or p.grad is v for p, v in zip(self._params, flats.grads, strict=True))

    def reduce_now(self) -> None:
        """Run a pass outside backward that averages the gradients accumulated without synchronisation."""
        with self._lock, torch.no_grad():
            if self._armed:
                raise StepError("reduce_gradients() is called inside backward(); call it after it.")
            self._arm()
        self._end()

    def reduce_again(self) -> bool:
        """Average the local gradients again, in the current quorum. Return False if that failed and was reported."""
        with torch.no_grad():
            with self._lock:
                self._scale = self._steps.scale()
                self._next, self._works = 0, []
                if self._steps.data.reproducible:
                    self._flatten_sums()
                for i, grad in enumerate(self._local):
                    if grad is not None and not self._bucket_of[i][1]:
                        self._copy(i, grad)
                while self._next < len(self.buckets):
                    self._launch()
                works = self._works
            good = self._join(works)
            if good:
                self._install()
        return good

    # --- in backward ------------------------------------------------------------------------------------------------

    def _ready(self, index: int, param: torch.Tensor) -> None:
        data = self._steps.data
        if data.reproducible:
            self._came.add(index)
            if self._left and self._sums.step is data.dealt and torch.is_grad_enabled():
                self._steps.reject_step(
                    StepError("create_graph=True is not possible in a reproducible step of several slots.")
                )
        later = self._at_once or (data.reproducible and not self._only_slot)
        if not self.synchronise or data.next_slot is not None or (self._armed and later):
            if data.reproducible and self.synchronise and not self._armed and not self._in_slot:
                self._in_slot = True
                _queue_last(self._slot_end)
            return  # a later pass, or the end of backward, takes the gradient
        if torch.is_grad_enabled():  # backward(create_graph=True)
            with torch.no_grad():
                self._ready(index, param)
            return
        grad = _grad_of(param)
        with self._lock:
            if not self._armed:
                self._arm()
                _queue_last(self._end)
            if self._local[index] is not None:
                self._take_again(index, grad)
                return
            self._take(index, grad)
            if self._scale is None or not self._missing[self._bucket_of[index][0]]:
                self._launch_full()

    def _arm(self) -> None:
        """Open a pass. Raises `StepError` if no quorum was ever started, which is a mistake in the script."""
        self._scale = self._steps.scale()
        for p, grad in zip(self._params, self._flats[self._current].grads, strict=True):
            if p.grad is grad:
                self._current = 1 - self._current
                if self._current == len(self._flats):
                    self._flats.append(FlatBuffers(self.buckets, self._params))
                break
        self._local = [None] * len(self._params)
        self._versions = None
        self._missing = list(map(len, self._inside))
        self._next, self._works = 0, []
        data, summed = self._steps.data, self._sums.step is self._steps.data.dealt and self._sums.grads
        self._only_slot = data.reproducible and data.slot is not None and data.next_slot is None and not summed
        self._armed = True

    def _take(self, index: int, grad: torch.Tensor | None) -> None:
        """Retain the local gradient. Copy and scale a large one now, while it is in the cache."""
        bucket, small = self._bucket_of[index]
        self._missing[bucket] -= 1
        if grad is None:
            return
        if grad.layout is not torch.strided:
            why = "is sparse; only dense ones can be averaged: say sparse=False (nn.Embedding)."
            name = f"parameter {index}, of shape {tuple(grad.shape)},"
            self._steps.reject_step(ConfigError(f"the gradient of {name} {why}"))
            return
        self._local[index] = grad
        if not small:
            self._copy(index, grad)

    def _copy(self, index: int, grad: torch.Tensor) -> None:
        """Copy a large gradient, scaled unless steps are reproducible, to its place in the flat buffer."""
        if self._scale == 0.0 or (self._steps.data.reproducible and not self._only_slot):
            return
        view = self._flats[self._current].views[index]
        if self._scale is None or self._only_slot:
            view.copy_(grad)
        else:
            torch.mul(grad, self._scale, out=view)

    def _take_again(self, index: int, grad: torch.Tensor | None) -> None:
        """Take a second gradient in one backward (shared parameter, reentrant checkpointing), which holds the sum."""
        bucket, _ = self._bucket_of[index]
        if bucket < self._next:
            why = "got another gradient after its bucket was sent; use checkpoint(use_reentrant=False)."
            self._steps.reject_step(StepError(f"parameter {index} {why}"))
            return
        self._missing[bucket] += 1
        self._take(index, grad)

    def _launch_full(self) -> None:
        if self._steps.data.reproducible and not self._only_slot:
            return  # the slots are summed at the end
        while self._next < len(self.buckets) and self._missing[self._next] == 0:
            if self._scale is None and self._steps.scale() is None:
                return  # the quorum has not come: backward goes on, and `_end` waits for it
            self._launch()

    def _launch(self) -> None:
        """Start the all-reduce of the next bucket. An error drops the step and is not raised."""
        k, self._next = self._next, self._next + 1
        try:
            if self._steps.data.reproducible:
                out = self._fill(k) if self._only_slot else self._flats[self._current].flat[k]
                values = [out] if self._only_slot else [flats.flat[k] for flats in self._nodes]
                self._works.append(self._steps.sum_slots(out, values, self._scratch[k]))
            else:
                self._works.append(self._steps.reduce(self._fill(k), _AVG if self._scale is None else _SUM))
        except Exception as e:
            self._works.append(None)
            self._steps.reject_step(e)

    def _fill(self, k: int) -> torch.Tensor:
        """Complete bucket `k`: copy small gradients together, write zeros for missing ones, and set the flags."""
        flats, local = self._flats[self._current], self._local
        flat = flats.flat[k]
        if self._scale == 0.0:
            self._all_came = False
            return flat.zero_()
        for i in [i for i in self._inside[k] if local[i] is None]:
            flats.views[i].zero_()
        small = [i for i in self._small[k] if local[i] is not None]
        if small:
            torch._foreach_copy_([flats.views[i] for i in small], [local[i] for i in small])
            if self._scale is not None and not self._only_slot:
                flat[: self._num_small[k]].mul_(self._scale)
        if self.buckets[k].num_flags:
            came = [g is not None for g in local]
            whole = False not in came
            flats.flags.fill_(1) if whole else flats.flags.copy_(torch.tensor(came))
            self._all_came = whole and self._scale is not None  # without a scale the Manager may still send zeros
        return flat

    # --- the end of backward ----------------------------------------------------------------------------------------

    def _end(self) -> None:
        """End the pass. Runs once a pass, after all other callbacks, on the thread that called backward."""
        with torch.no_grad():
            with self._lock:
                if not self._armed:
                    return
                self._armed = False
                local, missing, bucket_of = self._local, self._missing, self._bucket_of
                reproducible = self._steps.data.reproducible
                if reproducible:
                    self._start_sums()
                for i, p in enumerate(self._params):
                    if local[i] is None and missing[bucket_of[i][0]] and not self._is_empty(i):
                        # Unused in this backward, but gradients that no_sync accumulated before still count.
                        self._take(i, _grad_of(p))
                if reproducible:
                    self._add_slot()
                if reproducible and not self._only_slot:
                    self._flatten_sums()
                while self._next < len(self.buckets):
                    self._launch()
                self._only_slot = False  # a repeated reduction copies the sums again
                works = self._works
            good = self._join(works)
            self._ending = True
            try:
                # `end_pass` may call `reduce_again`.
                wanted = self._steps.end_pass(self, len(works), good, self._install if good else _nothing)
            finally:
                self._ending = False
            if good and self._versions is None:
                self._install()
            if not wanted:
                self._local = [None] * len(self._params)

    @torch.no_grad()
    def _slot_end(self) -> None:
        """Take the gradient of a slot that is not the last one of the step (reproducible steps)."""
        with self._lock:
            self._in_slot = False
            self._arm()
            self._armed = False
            self._start_sums()
            for i, p in enumerate(self._params):
                if not self._is_empty(i):
                    self._take(i, _grad_of(p))
                p.grad = None
            self._add_slot()
            next_slot = self._steps.data.next_slot
            alone = self._sharded or self._steps.data.is_compared(next_slot)
            if next_slot is not None and not alone and (left := self._sums.left(next_slot)):
                self._left = left
                for p, grad in zip(self._params, left, strict=True):
                    p.grad = grad

    def _start_sums(self) -> None:
        """Begin the sums of the step's slots, unless they have begun."""
        if self._sums.step is not self._steps.data.dealt:
            self._sums.start(self._steps.data.dealt)

    def _is_empty(self, index: int) -> bool:
        """Return whether the parameter's ``grad`` is the left sibling's sum, to which backward has added nothing."""
        return bool(self._left) and index not in self._came and self._params[index].grad is self._left[index]

    def _add_slot(self) -> None:
        """Add the taken gradient to the sums of the step's slots, unless it was computed only to compare it."""
        data = self._steps.data
        if data.is_compared(data.slot):
            data.compute_digest(self._local)
        if data.slot is not None and data.counts:
            self._sums.add(data.slot, self._local)
        self._left = ()
        self._came.clear()

    def _flatten_sums(self) -> None:
        """Copy the sums of the step's slots to flat buffers: the first to those of the result."""
        while len(self._more) + 1 < len(self._sums.grads):
            self._more.append(FlatBuffers(self.buckets, self._params))
        self._nodes = [self._flats[self._current], *self._more][: len(self._sums.grads)]
        whole = [flats.fill(grads) for flats, grads in zip(self._nodes, self._sums.grads, strict=True)]
        self._all_came = any(whole)

    def _join(self, works: Sequence[Any]) -> bool:
        good = True
        if self._steps.data.reproducible:
            for work in works:
                if isinstance(work, ManagedWork):
                    work.advance()  # so that the results of all buckets are under way together
        for work in works:
            try:
                good = work is not None and work.wait() is not False and good
            except Exception as e:
                good = False
                self._steps.reject_step(e)
        return good

    def _install(self) -> None:
        """Set ``p.grad`` to the average, or to None if no group had a gradient."""
        flats = self._flats[self._current]
        self._versions = [f._version for f in flats.flat]
        if self._all_came or flats.flags.real.min().item() > 0:
            for p, grad in zip(self._params, flats.grads, strict=True):
                p.grad = grad
            return
        for p, grad, flag in zip(self._params, flats.grads, flats.flags.real.tolist(), strict=True):
            p.grad = grad if flag > 0 else None


def _grad_of(p: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of this rank's part of `p`."""
    grad = p.grad
    return grad if grad is None or type(grad) is torch.Tensor else local_grad(p)


def _nothing() -> None:
    pass


def _queue_last(end: Callable[[], None]) -> None:
    """Call `end` behind all callbacks that this backward queues, because they may still bring gradients (FSDP's does)."""
    queue = Variable._execution_engine.queue_callback
    queue(lambda: queue(end))
