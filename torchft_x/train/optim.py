"""An optimizer that applies gradients only if the step commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer as TorchOptimizer

from torchft_x.errors import ConfigError

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


class OptimizerWrapper(TorchOptimizer):
    """Optimizer whose ``zero_grad()`` starts a quorum and whose ``step()`` applies gradients if the step commits.

    A dropped step changes nothing, so count and schedule by commits::

        optimizer.step()
        if optimizer.committed:
            scheduler.step()

    A schedule that is computed from ``manager.current_step()`` needs no such check. A healed group gets the optimizer's
    state from its source; put the scheduler's state into the Manager's state dict too.

    Args:
        manager: this rank's Manager.
        optim: the optimizer to wrap. The wrapper shares its parameter groups and state.
    """

    def __init__(self, manager: Manager, optim: TorchOptimizer) -> None:
        # Torch's __init__ is not called: it would make a second set of parameter groups.
        self.manager = manager
        self.optim = optim
        self.committed: bool | None = None  # whether the last step() committed; None before the first
        manager.context.committed.watch(optim)

    def __repr__(self) -> str:
        return f"OptimizerWrapper({self.optim!r}, committed={self.committed})"

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped optimizer, so that hooks registered on the wrapper run in its step."""
        if name == "optim":
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigError("an OptimizerWrapper can't be pickled or copied; save state_dict() instead.")

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.manager.start_quorum()
        self.optim.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Vote, step the wrapped optimizer if the vote commits, and store the outcome in `committed`.

        Raises the errors of `Manager.should_commit`, and `ConfigError` if a closure is given.
        """
        if closure is not None:
            raise ConfigError("optimizers with a closure are not supported: a step can't be evaluated twice.")
        self.committed = self.manager.should_commit()
        if self.committed:
            self.optim.step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optim.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optim.load_state_dict(state_dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optim.param_groups

    @property
    def state(self) -> Mapping[torch.Tensor, Any]:
        return self.optim.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.optim.defaults


Optimizer = OptimizerWrapper
