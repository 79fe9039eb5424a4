"""The object through which the reducer reduces gradients: the Manager's step loop, or the methods of a stand-in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist

from torchft_x.comm.slot_sum import Scratch
from torchft_x.errors import StepError
from torchft_x.train.manager import Manager
from torchft_x.train.step.reductions import LocalGradients

if TYPE_CHECKING:
    from torchft_x.train.step.step_loop import StepLoop

GradientSteps: TypeAlias = "StepLoop | ThroughManager"
_REDUCES = ("allreduce", "report_error")

UNDEALT: Any = SimpleNamespace(reproducible=False, dealt=None, slot=None, next_slot=None)
"""Data that the script chooses by itself."""


def steps_of(manager: Any) -> GradientSteps:
    """Return the Manager's step loop, so that the reducer calls it directly.

    For a stand-in for a Manager, or a Manager whose `allreduce` or `report_error` a script replaced, return an adapter
    that calls its methods.
    """
    steps: StepLoop | None = getattr(manager, "__dict__", {}).get("steps")
    return steps if steps is not None and not _reduces_itself(manager) else ThroughManager(manager, steps)


def _reduces_itself(manager: Any) -> bool:
    kind = type(manager)
    if not issubclass(kind, Manager):
        return False
    return any(name in vars(manager) or getattr(kind, name) is not getattr(Manager, name) for name in _REDUCES)


class ThroughManager:
    """Adapter that reduces through a Manager's methods. Without `steps`, `should_commit` decides each step."""

    def __init__(self, manager: Any, steps: StepLoop | None) -> None:
        self._manager = manager
        self._steps = steps

    @property
    def data(self) -> Any:
        return UNDEALT if self._steps is None else self._steps.data

    def sum_slots(self, out: torch.Tensor, values: Sequence[torch.Tensor], scratch: Scratch) -> Any:
        raise StepError("reproducible steps need the Manager's own reductions.")

    def scale(self) -> float | None:
        return None if self._steps is None else self._steps.scale()

    def reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        if op == dist.ReduceOp.AVG:
            return self._manager.allreduce(tensor)
        return self._manager.allreduce(tensor, reduce_op=op)

    def reject_step(self, error: Exception) -> None:
        self._manager.report_error(error)

    def end_pass(self, kept: LocalGradients, works: int, good: bool, meanwhile: Callable[[], None]) -> bool:
        return self._steps is None or self._steps.end_pass(kept, works, good, meanwhile)
