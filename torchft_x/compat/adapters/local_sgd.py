"""Groups that train apart, started as torchft's scripts expect: entering the ``with`` asks for no quorum yet.

torchft's own DiLoCo trains one period before its first quorum, and its scripts rely on it: their `state_dict` uses the
object that ``with ... as`` has not assigned yet, or they wait for others before the first step. So the groups agree on
their first weights a little later than in `torchft_x.DiLoCo`: at the model's first forward or the inner optimizer's
first step, whichever comes first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torchft_x.compat.adapters.manager import Manager
from torchft_x.train.local.diloco import DiLoCo as OurDiLoCo
from torchft_x.train.local.inner_loop import InnerLoop
from torchft_x.train.local.local_sgd import LocalSGD as OurLocalSGD
from torchft_x.transfer.format.flatten import is_dtensor


class _First:
    """Trigger that begins an inner loop at the first forward of one of its modules."""

    def __init__(self, manager: Any, loop: InnerLoop, modules: list[nn.Module]) -> None:
        self._loop = loop
        # FSDP has already gathered a sharded model's weights when the hook runs, so there only the optimizer's step
        # counts.
        self._modules = [m for m in modules if not any(is_dtensor(p) for p in m.parameters())]
        self._hooks: list[Any] = []
        if isinstance(manager, Manager):
            manager.trains_apart()

    def wait_for(self) -> None:
        self._loop.enter(later=True)
        self._hooks = [m.register_forward_pre_hook(self._forward) for m in self._modules]

    def _forward(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self.forget()
            self._loop.begin()

    def forget(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class _BeginsLater:
    """Start of an inner loop by `_first`."""

    _first: _First

    def _begin(self) -> None:
        self._first.wait_for()

    def __exit__(self, *error: Any) -> None:
        self._first.forget()
        super().__exit__(*error)  # type: ignore[misc]


class DiLoCo(_BeginsLater, OurDiLoCo):
    """`torchft_x.DiLoCo` that begins at the first forward or inner step."""

    def __init__(self, manager: Any, model_fragments: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(manager, model_fragments, *args, **kwargs)
        self._first = _First(manager, self._loop, list(model_fragments))


class LocalSGD(_BeginsLater, OurLocalSGD):
    """`torchft_x.LocalSGD` that begins at the first forward or step."""

    def __init__(self, manager: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(manager, model, *args, **kwargs)
        self._first = _First(manager, self._loop, [model])


def extract_local_tensor(t: torch.Tensor) -> torch.Tensor:
    """Return a copy of this rank's part of a tensor, without a gradient."""
    mine = t.to_local() if hasattr(t, "to_local") else t
    return mine.detach().clone()
