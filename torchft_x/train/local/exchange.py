"""One weighted reduction of one fragment over the groups, cut into buckets, and repeated if it fails.

A first tiny reduction (the census) adds up the members' weights. Then every member scales its values by its share, so
that the sum is the weighted average. A member with nothing to send has the weight 0.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ReduceOp

from torchft_x.comm.quantized.format import format_of
from torchft_x.core.training.sync_schedule import Census
from torchft_x.errors import StepError
from torchft_x.train.ddp.gradient_steps import steps_of
from torchft_x.train.local.dealt_data import DealtData
from torchft_x.train.local.flat_buffers import Filling, FlatBuffers, Part

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager

_WHOLE = 1 << 62  # bytes: one bucket for everything


class Exchange:
    """Exchange of one fragment. It is a `LocalGradients` of the Manager: its values can be sent again until they are applied.

    Args:
        manager: this rank's Manager.
        part: values to average.
        weight: weight of this rank's values in the average.
        count: takes the census in the current quorum.
        cap: bytes of a bucket; None: one tensor in each. Quantised values have no buckets: their reduction has chunks
            of its own, and between several reductions the network would idle.
        quantize: format in which values are sent, or False.
        changes: whether the values change during the reduction (inner steps in the background), so that a copy is kept.
    """

    numbered = False  # the census weighs each group's values independently of its number

    def __init__(
        self, manager: Manager, part: Part, weight: float, count: Callable[[], Census | None], *,
        cap: int | None, quantize: bool | str, changes: bool,
    ) -> None:  # fmt: skip
        self._manager = manager
        self._part = part
        self._weight = weight
        self._count = count
        self._quantize = quantize
        self._in_chunks = format_of(quantize) is not None  # the reduction reads its values piece by piece
        self._feedback = part.feedback  # the caller commits or drops it
        self._works: list[Any] = []  # handles of the newest attempt
        self._driver: threading.Thread | None = None  # waits for `_works` while the training thread makes inner steps
        self._flats = FlatBuffers(part.tensors(), _WHOLE if self._in_chunks and cap is not None else cap)
        self._census: Census | None = None  # census of the newest attempt; None if it failed
        self._sent = False  # whether `send` was called
        self._kept: list[torch.Tensor] | None = None  # copy of the values, if they change
        if changes:
            made = Filling(self._flats, part, None, 1.0, None)
            for i, flat in enumerate(self._flats.flat):
                made.upto(i, flat.numel())
            self._kept = [flat.clone() for flat in self._flats.flat]

    @property
    def moved(self) -> bool:
        """Whether any group had something to send."""
        return self._census is not None and self._census.weight > 0.0

    @property
    def averages(self) -> list[torch.Tensor]:
        """Result, as views in the order of the part's tensors. It is valid once the step is committed."""
        return self._flats.views

    @torch.no_grad()
    def send(self, census: Census | None) -> None:
        """Start the reductions of an attempt. If `census` is None, because it failed, they fail at once."""
        self._census, self._sent = census, True
        share = self._weight / census.weight if census is not None and census.weight else 0.0
        flats, lost, filling = self._flats, None, None
        if self._feedback is not None:
            sends = share != 0.0 and self._manager.is_participating()
            lost = self._feedback.start(flats.flat, sends=sends)
        if share == 0.0:
            for flat in flats.flat:
                flat.zero_()  # not a product, because 0 times NaN is NaN
        else:
            filling = Filling(flats, self._part, self._kept, share, self._feedback)
        self._works = []
        for number, a, b in flats.chunks:
            more: dict[str, Any] = {}
            if lost is not None:
                more["lost"] = lost[number][a:b]
            if filling is not None and self._in_chunks:
                more["before"] = functools.partial(_fill, filling, number, a)
            elif filling is not None:
                filling.upto(number, b)
            self._works.append(
                self._manager.allreduce(
                    flats.flat[number][a:b], should_quantize=self._quantize, reduce_op=ReduceOp.SUM, **more
                )
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


def _fill(filling: Filling, number: int, first: int, a: int, b: int) -> None:
    """Fill the elements before `b` of a bucket that begins at element `first` of buffer `number`."""
    filling.upto(number, first + b)


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
