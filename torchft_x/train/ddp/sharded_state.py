"""State of a sharded model and its optimizers for heals. Each rank copies its shards from another group's same rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchft_x.errors import ConfigError, TransferError
from torchft_x.train.ddp.hsdp import reshard
from torchft_x.train.ddp.shards import describe, like, local, offloaded
from torchft_x.transfer.format.flatten import is_dtensor


class ShardedState:
    """State of a model that is sharded within its group, with the `state_dict` and `load_state_dict` for a Manager.

    ::

        state = ShardedState(model, optimizer)
        manager = Manager(pg, state.load_state_dict, state.state_dict, ...)

    ``model.state_dict()`` does not work for that. Other groups copy this state while the forward pass runs, when FSDP
    has replaced the shards by whole parameters. Asking FSDP for its state during a forward removes the whole
    parameters that the forward uses. This class holds the shards themselves, which only the optimizer changes. It
    returns them without a copy, and loads received values into them in place, including the optimizer's state.

    Use it for heals, not as a checkpoint: it holds one rank's part, which only the same rank of as many ranks can load.

    Args:
        module: sharded module, as given to `HybridShardedDataParallel`, or that wrapper itself.
        optimizers: the optimizers that step its parameters.
    """

    def __init__(self, module: nn.Module, *optimizers: Optimizer) -> None:
        reshard(module)
        self._module = module
        self._optimizers = optimizers
        self._params = dict(module.named_parameters())
        self._buffers = dict(_persistent_buffers(module))  # by name: module and attribute

    def state_dict(self) -> dict[str, Any]:
        """Return the live shards as plain tensors. Call it from any thread, but not while the optimizer steps."""
        return {
            "model": {name: local(p) for name, p in self._params.items()},
            "buffers": {name: getattr(m, at) for name, (m, at) in self._buffers.items()},
            "optim": [optimizer_state(o) for o in self._optimizers],
            "sharding": {name: describe(p) for name, p in self._params.items()},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the `state_dict` of the same rank of another group. Call it between two steps.

        Raises `TransferError`, before anything is changed, if the state doesn't fit.
        """
        self._check(state)
        # Without this a module that FSDP did not reshard would use its gathered old values in the next forward.
        reshard(self._module)
        if any(offloaded(p) for p in self._params.values()):
            torch.accelerator.synchronize()  # a forward's copies to the device may still read the host memory
        for name, p in self._params.items():
            _fill(local(p), state["model"][name])
        for name, (m, at) in self._buffers.items():
            _fill(getattr(m, at), state["buffers"][name])
        for optimizer, saved in zip(self._optimizers, state["optim"], strict=True):
            load_optimizer(optimizer, saved)

    def _check(self, state: dict[str, Any]) -> None:
        mine = {name: describe(p) for name, p in self._params.items()}
        if not isinstance(state, dict) or set(state) != {"model", "buffers", "optim", "sharding"}:
            raise TransferError("what came is not the state of a ShardedState; run the same script in all groups.")
        theirs = state["sharding"]
        for name in {**mine, **theirs}:
            if mine.get(name) != theirs.get(name):
                raise TransferError(
                    f"{name} is {theirs.get(name) or 'whole or absent'} at the source and "
                    f"{mine.get(name) or 'whole or absent'} here; shard alike in all groups."
                )
        if set(state["buffers"]) != set(self._buffers) or len(state["optim"]) != len(self._optimizers):
            raise TransferError("the source has other buffers or optimizers; run the same script in all groups.")
        for name, p in self._params.items():
            came = state["model"][name]
            if came.shape != local(p).shape or came.dtype != p.dtype:
                raise TransferError(f"{name} is {tuple(came.shape)} {came.dtype} at the source and not so here.")


def _persistent_buffers(module: nn.Module) -> Iterator[tuple[str, tuple[nn.Module, str]]]:
    for prefix, m in module.named_modules():
        if type(m).get_extra_state is not nn.Module.get_extra_state:
            raise ConfigError(
                f"module {prefix or 'at the root'} ({type(m).__name__}) has an extra state, which ShardedState doesn't "
                "carry; give it to manager.register_state_dict_fn and override nothing here."
            )
        for name, buffer in m._buffers.items():
            if buffer is not None and name not in m._non_persistent_buffers_set:
                yield (f"{prefix}.{name}" if prefix else name), (m, name)


def _fill(mine: torch.Tensor, came: torch.Tensor) -> None:
    if mine.data_ptr() != came.data_ptr() or not mine.numel():
        mine.copy_(came)


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's state dict with shards instead of DTensors, and the sharding by parameter and key."""
    saved = optimizer.state_dict()
    state: dict[int, dict[str, Any]] = {}
    cut: dict[int, dict[str, str]] = {}
    for index, values in saved["state"].items():
        state[index] = {k: local(v) if isinstance(v, torch.Tensor) else v for k, v in values.items()}
        cut[index] = {k: describe(v) for k, v in values.items() if is_dtensor(v)}
    return {"state": state, "param_groups": saved["param_groups"], "sharding": cut}


def load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load `saved` in place if the optimizer has state already; before its first step it takes the saved tensors."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for index, values in saved["state"].items():
        p = params[index]
        have = optimizer.state.get(p, {})
        state[index] = {
            key: _placed(p, have.get(key), value, saved["sharding"][index].get(key, ""))
            for key, value in values.items()
        }
    optimizer.load_state_dict({"state": state, "param_groups": saved["param_groups"]})


def _placed(p: torch.Tensor, mine: Any, came: Any, cut: str) -> Any:
    """Return the new value of one key of a parameter's optimizer state. `mine` is the present value; None if absent."""
    if not isinstance(came, torch.Tensor):
        return came
    if isinstance(mine, torch.Tensor) and describe(mine) == cut and local(mine).shape == came.shape:
        _fill(local(mine), came)
        return mine
    if not cut:
        return came
    if cut != describe(p):
        raise TransferError(
            f"the optimizer's state is {cut} where its parameter is {describe(p)}; such a state can only be received "
            "by an optimizer that has made one of its own (let it take a step first)."
        )
    return like(p, came.to(local(p).device))
