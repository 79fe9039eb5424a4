"""LocalSGD (arXiv 1805.09767): groups train by themselves and average their weights periodically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchft_x.core.training.sync_schedule import Settings
from torchft_x.durations import Seconds
from torchft_x.errors import ConfigError, TransferError
from torchft_x.train.ddp.fingerprint import declare_fragments
from torchft_x.train.ddp.hsdp import reshard
from torchft_x.train.ddp.shards import like, local, shard_of
from torchft_x.train.ddp.trainable import TrainableParameters
from torchft_x.train.local.fragments import take
from torchft_x.train.local.inner_loop import InnerLoop, InnerLoopContext

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


class LocalSGD(InnerLoopContext):
    """Averaging of the weights of all groups after every `sync_every` steps of the optimizer.

    ::

        with LocalSGD(manager, model, optimizer, sync_every=100):
            for batch in data:
                optimizer.zero_grad()
                loss(model, batch).backward()
                optimizer.step()  # every 100th comes back with the average

    Entering asks for the first quorum, so that a new group has the others' weights before its first step. If an
    exchange fails, the local weights stay, and the exchange is tried again after one more step. A group that heals has
    nothing to average and only receives.

    Args:
        manager: this rank's Manager. Its state dict should hold the optimizer's state (and buffers); the weights heal
            without being in it.
        model: model that is whole on this rank, or sharded within the group (FSDP2) alike in all groups.
        optimizer: the plain optimizer, not `torchft_x.Optimizer`.
        sync_every: number of optimizer steps between two averages.
        weight: called before each exchange; returns this group's weight in the average, e.g. the tokens it has trained
            on. If None, all groups have the same weight.
        quorum_timeout: seconds that an exchange waits for the other groups to come to theirs; an hour if None.

    Raises `ConfigError` for a model that can't be averaged. ``optimizer.step()`` raises the errors of
    `Manager.start_quorum` and `Manager.should_commit`.
    """

    def __init__(
        self, manager: Manager, model: nn.Module, optimizer: Optimizer, sync_every: int, *,
        weight: Callable[[], float] | None = None, quorum_timeout: Seconds | None = None,
    ) -> None:  # fmt: skip
        self._weights = _Weights(model)
        self._entered = False
        settings = Settings(sync_every=sync_every)
        declare_fragments(manager, [model], f"LocalSGD, {settings}")
        manager.register_state_dict_fn("LocalSGDWeights", self._weights.load_state_dict, self._weights.state_dict)
        self._loop = InnerLoop(
            manager, optimizer, settings, [self._weights], key="LocalSGD", weight=weight, quorum_timeout=quorum_timeout,
            trainable=[TrainableParameters(model, frozen=True)],
        )  # fmt: skip

    def __enter__(self) -> LocalSGD:
        self._entered = True
        self._begin()
        return self

    def sync(self) -> None:
        """Average now, after waiting until the other groups come to their next exchange."""
        self._loop.now()

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, right after an average. Sharded parameters are DTensors."""
        return {"exchanges": self.exchanges, "weights": self._weights.saved()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a checkpoint before training begins. Raises `ConfigError` if it is too late, or of another model."""
        if self._entered:
            raise ConfigError("LocalSGD.load_state_dict must be called before training begins (before `with`).")
        self._weights.load_saved(state["weights"])
        self._loop.schedule.healed(int(state["exchanges"]))


class _Weights:
    """This rank's shards of the model's parameters, as the `Part` that LocalSGD averages."""

    feedback = None  # LocalSGD doesn't quantise

    def __init__(self, model: nn.Module) -> None:
        reshard(model)
        self._model = model
        self._params = dict(model.named_parameters())
        if not self._params:
            raise ConfigError("the model has no parameters; there is nothing to average.")
        for name, p in self._params.items():
            if not p.is_floating_point():
                raise ConfigError(f"parameter {name} is {p.dtype}; only floating point can be averaged.")

    @property
    def device(self) -> torch.device:
        return local(next(iter(self._params.values()))).device

    def tensors(self) -> Sequence[torch.Tensor]:
        return [local(p) for p in self._params.values()]

    @torch.no_grad()
    def fill(self, views: Sequence[torch.Tensor]) -> None:
        torch._foreach_copy_(list(views), list(self.tensors()))

    @torch.no_grad()
    def apply(self, averages: Sequence[torch.Tensor]) -> None:
        reshard(self._model)
        torch._foreach_copy_(list(self.tensors()), list(averages))

    def after_heal(self) -> None:
        pass  # training goes on with the loaded weights

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name: local(p) for name, p in self._params.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        if not isinstance(state, dict) or set(state) != set(self._params):
            raise TransferError("the source's weights have other names; run the same script in all groups.")
        reshard(self._model)
        take(self.state_dict(), state)

    def saved(self) -> dict[str, torch.Tensor]:
        return {name: like(p, local(p)) for name, p in self._params.items()}

    @torch.no_grad()
    def load_saved(self, came: dict[str, torch.Tensor]) -> None:
        if {name: v.shape for name, v in came.items()} != {name: p.shape for name, p in self._params.items()}:
            raise ConfigError("the checkpoint's weights have other names or shapes; build the model as it was.")
        reshard(self._model)
        for name, p in self._params.items():
            local(p).copy_(shard_of(p, came[name]))
