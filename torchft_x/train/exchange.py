"""One reduction of one fragment over the groups: weighed, cut into buckets, and sent again if it broke.

Each member's values count by its weight: a first tiny reduction (the census) adds up the weights, then every member scales
what it sends by its share, so that the sum is the weighted average. A member with nothing to send has the weight 0.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.distributed import ReduceOp

from torchft_x.core.schedule import Census
from torchft_x.errors import StepError

if TYPE_CHECKING:
    from torchft_x.train.feedback import Feedback
    from torchft_x.train.manager import Manager

_ALIGNED = 1024  # elements: a bucket within a flat buffer begins at a multiple of this


class Part(Protocol):
    """What is averaged."""

    def tensors(self) -> Sequence[torch.Tensor]:
        """This rank's, for their shapes, dtypes and devices; the same in all groups."""

    def fill(self, views: Sequence[torch.Tensor]) -> None:
        """Write what this rank sends into `views`, which have the shapes of `tensors`. The same until `apply`."""


class Flats:
    """Memory for some tensors, one flat buffer for each (dtype, device), with a view per tensor.

    `chunks` are slices of the buffers of at most `cap` bytes (None: one per tensor). A tensor that is larger than that
    is in several of them: where it begins and ends is of no interest to a sum.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], cap: int | None) -> None:
        self.flat: list[torch.Tensor] = []
        self._cuts: list[list[int]] = []  # by flat buffer: sizes of its chunks
        views: dict[int, torch.Tensor] = {}
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for i, t in enumerate(tensors):
            kinds.setdefault((t.dtype, t.device), []).append(i)
        for (dtype, device), members in kinds.items():
            flat = torch.empty(sum(tensors[i].numel() for i in members), dtype=dtype, device=device)
            at = 0
            for i in members:
                views[i] = flat[at : at + tensors[i].numel()].view(tensors[i].shape)
                at += tensors[i].numel()
            self.flat.append(flat)
            if cap is None:
                self._cuts.append([tensors[i].numel() for i in members])
            else:
                size = max(_ALIGNED, cap // flat.element_size() // _ALIGNED * _ALIGNED)
                self._cuts.append([part.numel() for part in flat.split(size)])
        self.views = [views[i] for i in range(len(tensors))]
        self.chunks = self.cut(self.flat)

    def cut(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The chunks of other buffers as large as `flat`."""
        parts = [part for flat, sizes in zip(flats, self._cuts, strict=True) for part in flat.split(sizes)]
        return [part for part in parts if part.numel()]


class Exchange:
    """A `Kept` of the Manager: what it has sent can be sent again until it is applied.

    Args:
        manager: this rank's.
        part: what is averaged.
        weight: of this rank's values in the average.
        count: takes the census in the quorum in hand.
        cap: bytes of a bucket; None: one tensor in each.
        quantize: what is sent is quantised.
        changes: the values change while they are on the way (inner steps in the background), so they are kept.
        feedback: of the part, if it is quantised with error feedback. Whoever applies the exchange commits it.
    """

    def __init__(
        self, manager: Manager, part: Part, weight: float, count: Callable[[], Census | None], *,
        cap: int | None, quantize: bool | str, changes: bool, feedback: Feedback | None = None,
    ) -> None:  # fmt: skip
        self._manager = manager
        self._part = part
        self._weight = weight
        self._count = count
        self._quantize = quantize
        self._feedback = feedback  # see above
        self._works: list[Any] = []  # of the newest attempt
        self._driver: threading.Thread | None = None  # waits for them while the training thread makes inner steps
        self._flats = Flats(part.tensors(), cap)
        self._census: Census | None = None  # of the newest attempt; None: it failed
        self._sent = False  # at least once
        self._kept: list[torch.Tensor] | None = None  # the values themselves, if they change
        if changes:
            part.fill(self._flats.views)
            self._kept = [flat.clone() for flat in self._flats.flat]

    @property
    def moved(self) -> bool:
        """Whether there was anything in it."""
        return self._census is not None and self._census.weight > 0.0

    @property
    def averages(self) -> list[torch.Tensor]:
        """The result, as views in the order of the part's tensors. Good once the step is committed."""
        return self._flats.views

    @torch.no_grad()
    def send(self, census: Census | None) -> None:
        """Start the reductions of this attempt. After a census that failed they fail at once."""
        self._census, self._sent = census, True
        share = self._weight / census.weight if census is not None and census.weight else 0.0
        if share == 0.0:
            for flat in self._flats.flat:
                flat.zero_()  # not a product: nothing times NaN is NaN
        else:
            if self._kept is None:
                self._part.fill(self._flats.views)
            for i, flat in enumerate(self._flats.flat):
                if self._kept is not None:
                    flat.copy_(self._kept[i])
                if share != 1.0:
                    flat.mul_(share)
        chunks = self._flats.chunks
        more: list[dict[str, Any]] = [{} for _ in chunks]
        if self._feedback is not None:
            sends = share != 0.0 and self._manager.is_participating()
            lost = self._flats.cut(self._feedback.start(self._flats.flat, sends=sends))
            more = [{"lost": part} for part in lost]
        self._works = [
            self._manager.allreduce(chunk, should_quantize=self._quantize, reduce_op=ReduceOp.SUM, **kwargs)
            for chunk, kwargs in zip(chunks, more, strict=True)
        ]

    def drive(self) -> None:
        """The training thread turns to other things. Quantised reductions get on only where somebody waits for them, so a
        thread does, until `finish`; nobody else uses the process group meanwhile, so the order of collectives is the same in
        all groups. On an accelerator it would wait on a stream of its own, where nothing of this is needed."""
        if self._quantize and all(flat.device.type == "cpu" for flat in self._flats.flat):
            self._driver = threading.Thread(target=self._wait, name="torchft_x-exchange", daemon=True)
            self._driver.start()

    def finish(self) -> bool:
        """Wait, and vote. True: the groups have committed, and `averages` is the same in all of them."""
        if self._driver is not None:
            self._driver.join()  # each of its waits has the Manager's timeout
            self._driver = None
        self._manager.keep(self, len(self._works) + 1)  # and the census
        self._manager.end_pass(self._wait())  # may come back through `reduce_again`
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
    manager: Manager, *, weight: float, waiting: bool, exchanges: int, device: torch.device | None = None
) -> Census | None:
    """Add up what the members of the quorum in hand say. None: it failed, and the step with it.

    `device`: where the group can reduce; None: the CPU.

    Raises `StepError` if they don't stand at the same exchange: they would reduce different fragments with each other.
    """
    if not (math.isfinite(weight) and weight >= 0.0):
        raise StepError(f"the weight of this group's work is {weight}; it must be a number of 0 or more.")
    row = torch.tensor([weight, float(waiting), float(exchanges), 1.0], dtype=torch.float64, device=device)
    if manager.allreduce(row, reduce_op=ReduceOp.SUM).wait() is False:
        return None
    total, others_wait, sum_of_exchanges, members = row.tolist()
    if members and sum_of_exchanges != exchanges * members:
        error = StepError(
            f"this group has made {exchanges} exchanges and the {members:g} groups of this quorum "
            f"{sum_of_exchanges / members:g} on average; resume all of them from the same checkpoint."
        )
        manager.report_error(error)
        raise error
    return Census(total, others_wait > 0.0)
