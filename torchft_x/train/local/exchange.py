"""One weighted reduction of one fragment over the groups, cut into buckets, and repeated if it fails.

A first tiny reduction (the census) adds up the members' weights. Then every member scales its values by its share, so
that the sum is the weighted average. A member with nothing to send has the weight 0.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ReduceOp

from torchft_x.comm.quantized.format import format_of
from torchft_x.core.training.sync_schedule import Census
from torchft_x.errors import StepError
from torchft_x.train.ddp.buckets import FlatBuffers, plan_buckets
from torchft_x.train.ddp.gradient_steps import steps_of
from torchft_x.train.local.dealt_data import DealtData

if TYPE_CHECKING:
    from torchft_x.train.local.fragments import Fragment
    from torchft_x.train.manager import Manager

_WHOLE = 1 << 62  # bytes: one flat buffer for each dtype and device


class Exchange:
    """Exchange of one fragment. It is a `LocalGradients` of the Manager: its values can be sent again until they are applied.

    Args:
        manager: this rank's Manager.
        fragment: makes the values to average.
        weight: weight of this rank's values in the average.
        count: takes the census in the current quorum.
        cap: largest bytes of a bucket; 0: one tensor in each. Quantised values have no buckets: their reduction has
            chunks of its own, and between several reductions the network would idle.
        quantize: format in which values are sent, or False.
        changes: whether the values change during the reduction (inner steps in the background), so that a copy is kept.
    """

    numbered = False  # the census weighs each group's values independently of its number

    def __init__(
        self, manager: Manager, fragment: Fragment, weight: float, count: Callable[[], Census | None], *,
        cap: int, quantize: bool | str, changes: bool,
    ) -> None:  # fmt: skip
        self._manager = manager
        self._fragment = fragment
        self._weight = weight
        self._count = count
        self._quantize = quantize
        self._in_chunks = format_of(quantize) is not None  # the reduction sends its values piece by piece
        self._cap = cap
        self._feedback = fragment.feedback  # the caller commits or drops it
        self._works: list[Any] = []  # handles of the newest attempt
        self._driver: threading.Thread | None = None  # waits for `_works` while the training thread makes inner steps
        self._census: Census | None = None  # census of the newest attempt; None if it failed
        self._sent = False  # whether `send` was called
        # A bucket has elements in the order of the tensor's memory, but memory formats may differ between the groups.
        made = fragment.tensors()
        tensors = [t if t.is_contiguous() else torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in made]
        size = _WHOLE if cap else 0
        buckets = plan_buckets(tensors, first_bytes=size, bucket_bytes=size, flags=False)
        self._flats = FlatBuffers(buckets, tensors)
        self._kept: FlatBuffers | None = None  # the values, if they change
        if changes:
            self._kept = FlatBuffers(buckets, tensors)
            fragment.fill(self._kept.views)

    @property
    def moved(self) -> bool:
        """Whether any group had something to send."""
        return self._census is not None and self._census.weight > 0.0

    @property
    def averages(self) -> list[torch.Tensor]:
        """Result, as views in the order of the fragment's tensors. It is valid once the step is committed."""
        return self._flats.views

    @torch.no_grad()
    def send(self, census: Census | None) -> None:
        """Start the reductions of an attempt. If `census` is None, because it failed, they fail at once."""
        self._census, self._sent = census, True
        share = self._weight / census.weight if census is not None and census.weight else 0.0
        flats = self._flats.flat
        lost: Sequence[torch.Tensor | None] = [None] * len(flats)
        if self._feedback is not None:
            lost = self._feedback.start(flats, sends=share != 0.0 and self._manager.is_participating())
        if share != 0.0 and self._kept is None:
            self._fragment.fill(self._flats.views)
        self._works = []
        for number, flat in enumerate(flats):
            if share == 0.0:
                flat.zero_()  # not a product, because 0 times NaN is NaN
            else:
                torch.mul(flat if self._kept is None else self._kept.flat[number], share, out=flat)
                if self._feedback is not None:
                    self._feedback.add(number, flat)
            self._reduce(flat, lost[number])

    def _reduce(self, flat: torch.Tensor, lost: torch.Tensor | None) -> None:
        """Start the reductions of a flat buffer: a single one, or one for each `cap` bytes."""
        more = {} if lost is None else {"lost": lost}
        size = max(1, self._cap // flat.element_size())
        pieces = (flat,) if self._in_chunks or not self._cap else flat.split(size)
        for piece in pieces:
            if piece.numel():
                self._works.append(
                    self._manager.allreduce(piece, should_quantize=self._quantize, reduce_op=ReduceOp.SUM, **more)
                )

    def drive(self) -> None:
        """Start a thread that waits for quantised reductions on the CPU while the training thread makes inner steps.

        Quantised reductions progress only while a thread waits for them. Until `finish` nothing else uses the process
        group, so the order of collectives is the same in all groups. On an accelerator the thread would wait on a
        stream of its own, and no thread is needed.
        """
        if self._in_chunks and all(flat.device.type == "cpu" for flat in self._flats.flat):
            self._driver = threading.Thread(target=self._wait, name="torchft_x-exchange", daemon=True)
            self._driver.start()

    def finish(self) -> bool:
        """Wait and vote. Return whether the groups have committed; `averages` is then equal in all of them."""
        if self._driver is not None:
            self._driver.join()  # ends, because each of its waits has the Manager's timeout
            self._driver = None
        works = len(self._works) + 1  # plus the census
        # `end_pass` may call `reduce_again`.
        steps_of(self._manager).end_pass(self, works, self._wait(), lambda: None)
        return bool(self._manager.should_commit())

    # --- for the Manager --------------------------------------------------------------------------------------------

    def intact(self) -> bool:
        return self._sent

    def reduce_again(self) -> bool:
        census = self._count()
        self.send(census)
        return self._wait() and census is not None

    def _wait(self) -> bool:
        good = True
        for work in self._works:
            good = work.wait() is not False and good
        return good


def take_census(
    manager: Manager,
    *,
    weight: float,
    waiting: bool,
    exchanges: int,
    data: DealtData,
    device: torch.device | None = None,
) -> Census | None:
    """Add up the weights of the current quorum's members. Return None if that failed; the step then fails too.

    `data` adds the inner steps of each group. `device` is one on which the process group can reduce; None: the CPU.

    Raises `StepError` for a bad weight, or if the members have made different numbers of exchanges, because they would
    reduce different fragments with each other.
    """
    if not (math.isfinite(weight) and weight >= 0.0):
        raise StepError(f"the weight of this group's work is {weight}; it must be a number of 0 or more.")
    numbers = [weight, float(waiting), float(exchanges), 1.0, *data.row()]
    row = torch.tensor(numbers, dtype=torch.float64, device=device)
    if manager.allreduce(row, reduce_op=ReduceOp.SUM).wait() is False:
        return None
    total, others_wait, sum_of_exchanges, members, *steps = row.tolist()
    if members and sum_of_exchanges != exchanges * members:
        error = StepError(
            f"this group has made {exchanges} exchanges and the {members:g} groups of this quorum "
            f"{sum_of_exchanges / members:g} on average; resume all of them from the same checkpoint."
        )
        manager.report_error(error)
        raise error
    data.counted(steps)
    return Census(total, others_wait > 0.0)
