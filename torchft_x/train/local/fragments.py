"""One fragment of a model under DiLoCo: its global weights, and their outer step by an averaged pseudo-gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchft_x.errors import ConfigError, TransferError
from torchft_x.train.ddp.hsdp import reshard
from torchft_x.train.ddp.sharded_state import load_optimizer, optimizer_state
from torchft_x.train.ddp.shards import describe, like, local, shard_of
from torchft_x.train.local.error_feedback import ErrorFeedback


class Fragment:
    """Part of a model that is exchanged by itself. Owns its global weights, and lets the outer optimizer step them.

    The pseudo-gradient of a parameter is its global value minus its local one. The outer optimizer takes the average
    over the groups as gradient, and steps the global values. For a parameter that is sharded within the group all
    values are those of this rank's shard.

    Args:
        module: module whose parameters are the fragment: those that need gradients; with `frozen` all.
        outer: optimizer that steps them; it may hold parameters of other fragments too.
        carries_outer: whether the outer optimizer's state heals with this fragment; true for one of those that share
            it.
        device: device that keeps the global values; None: the CPU.
        pin_memory: whether they are in pinned memory, if they are on the CPU and there is an accelerator.
        alpha: share of the local value in a parameter after an exchange, from 0 to 1.
        stage: whether the sent values are on the CPU.
        feedback: whether the quantisation error of one exchange is added to the next.
        frozen: see `module`.
    """

    def __init__(
        self, module: nn.Module, outer: Optimizer, *, carries_outer: bool, device: torch.device | None,
        pin_memory: bool, alpha: float, stage: bool = False, feedback: bool = False, frozen: bool = False,
    ) -> None:  # fmt: skip
        reshard(module)
        self.module = module
        self._params = {name: p for name, p in module.named_parameters() if p.requires_grad or frozen}
        _check(self._params)
        self._outer = outer
        self._outer_params = [p for group in outer.param_groups for p in group["params"]]
        held = {id(p) for p in self._outer_params}
        for name, p in self._params.items():
            if id(p) not in held:
                raise ConfigError(
                    f"the outer optimizer doesn't hold parameter {name} of its fragment; give it that too."
                )
        self._carries_outer = carries_outer
        self.alpha = alpha
        self._stage = stage
        self.feedback = ErrorFeedback(device) if feedback else None
        """Error feedback of this rank alone, so it is part of no state."""
        pinned = pin_memory and torch.accelerator.is_available() and (device is None or device.type == "cpu")
        self.original_parameters = {
            name: torch.empty_like(local(p), device=device or torch.device("cpu"), pin_memory=pinned)
            for name, p in self._params.items()
        }
        """This rank's shards of the global values, by name. They are equal in all groups after each exchange."""
        self.save()

    @torch.no_grad()
    def save(self) -> None:
        """Copy the current weights to the global ones."""
        for name, p in self._params.items():
            self.original_parameters[name].copy_(local(p))

    @torch.no_grad()
    def restore(self) -> None:
        """Copy the global weights to the current ones."""
        reshard(self.module)
        for name, p in self._params.items():
            local(p).copy_(self.original_parameters[name])

    # --- for the inner loop -----------------------------------------------------------------------------------------

    def tensors(self) -> Sequence[torch.Tensor]:
        """Return tensors with the shapes and dtypes of the sent values, which are equal in all groups."""
        if self._stage:
            return [torch.empty_like(local(p), device="cpu") for p in self._params.values()]
        return [local(p) for p in self._params.values()]

    @property
    def device(self) -> torch.device:
        """Device of the sent values, on which the process group can reduce."""
        return torch.device("cpu") if self._stage else local(next(iter(self._params.values()))).device

    @torch.no_grad()
    def fill(self, views: Sequence[torch.Tensor]) -> None:
        """Write the pseudo-gradients into `views`, which have the shapes of `tensors`."""
        for view, (name, p) in zip(views, self._params.items(), strict=True):
            torch.sub(self.original_parameters[name].to(view.device), local(p).to(view.device), out=view)

    @torch.no_grad()
    def apply(self, averages: Sequence[torch.Tensor]) -> None:
        """Let the outer optimizer step the global weights, and make them the current ones, mixed with `alpha` local."""
        mine = [local(p).clone() for p in self._params.values()] if self.alpha else []
        self.restore()
        # An outer optimizer that holds other fragments too must not take their inner gradients for pseudo-gradients.
        grads = [p.grad for p in self._outer_params]
        for p in self._outer_params:
            p.grad = None
        for p, average in zip(self._params.values(), averages, strict=True):
            p.grad = like(p, average.to(local(p).device))
        self._outer.step()
        for p, grad in zip(self._outer_params, grads, strict=True):
            p.grad = grad
        self.save()
        for p, value in zip(self._params.values(), mine, strict=bool(mine)):
            local(p).lerp_(value, self.alpha)

    def after_heal(self) -> None:
        """Begin with the global weights after a heal, because the source's inner steps must count only once."""
        self.restore()

    # --- the state that heals ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the live tensors, without copies, for a heal."""
        return {
            "outer_optimizer": optimizer_state(self._outer) if self._carries_outer else None,
            "original_parameters": dict(self.original_parameters),
            "sharding": {name: describe(p) for name, p in self._params.items()},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a fragment's state. Raises `TransferError`, before anything is changed, if it is of another fragment."""
        keys = {"outer_optimizer", "original_parameters", "sharding"}
        if not isinstance(state, dict) or set(state) != keys or not isinstance(state["original_parameters"], dict):
            raise TransferError("what came is not the state of a fragment; run the same script in all groups.")
        came = state["original_parameters"]
        mine = {name: describe(p) for name, p in self._params.items()}
        if mine != state["sharding"] or set(came) != set(mine):
            raise TransferError(
                "the source's fragment has other parameters or shards; cut the model alike in all groups."
            )
        if (state["outer_optimizer"] is not None) != self._carries_outer:
            raise TransferError(
                "the source shares its outer optimizers in another way; run the same script in all groups."
            )
        take(self.original_parameters, came)
        if self._carries_outer:
            load_optimizer(self._outer, state["outer_optimizer"])

    # --- a checkpoint -----------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """Return the live tensors for a checkpoint; sharded ones are DTensors, which any number of ranks can read."""
        values = self.original_parameters
        return {
            "outer_optimizer": self._outer.state_dict() if self._carries_outer else None,
            "original_parameters": {name: like(p, values[name]) for name, p in self._params.items()},
        }

    @torch.no_grad()
    def load_saved(self, state: dict[str, Any]) -> None:
        """Load the result of `saved`, with tensors that are whole or sharded as here. Raises `ConfigError`."""
        came, outer = state["original_parameters"], state["outer_optimizer"]
        if set(came) != set(self._params) or (outer is not None) != self._carries_outer:
            raise ConfigError(
                "the checkpoint's fragments have other parameters or outer optimizers; cut the model as it was."
            )
        for name, p in self._params.items():
            if came[name].shape != p.shape:
                raise ConfigError(f"{name} is {tuple(came[name].shape)} in the checkpoint and {tuple(p.shape)} here.")
        for name, p in self._params.items():
            self.original_parameters[name].copy_(shard_of(p, came[name]))
        if self._carries_outer:
            state_of = {i: self._cut(self._outer_params[i], values) for i, values in outer["state"].items()}
            self._outer.load_state_dict({"state": state_of, "param_groups": outer["param_groups"]})
        self.restore()

    @staticmethod
    def _cut(p: torch.Tensor, values: dict[str, Any]) -> dict[str, Any]:
        """Return an outer optimizer's state of one parameter; tensors of the parameter's shape are sharded like it."""
        return {
            key: like(p, shard_of(p, value)) if isinstance(value, torch.Tensor) and value.shape == p.shape else value
            for key, value in values.items()
        }


def take(mine: dict[str, torch.Tensor], came: dict[str, Any]) -> None:
    """Copy values to `mine`, which has the same names. Raises `TransferError`, before anything is changed."""
    for name, here in mine.items():
        value = came[name]
        if not isinstance(value, torch.Tensor) or value.shape != here.shape or value.dtype != here.dtype:
            raise TransferError(f"{name} has another shape or type at the source; cut the model alike in all groups.")
    for name, here in mine.items():
        if here.data_ptr() != came[name].data_ptr():
            here.copy_(came[name])


def _check(params: dict[str, nn.Parameter]) -> None:
    if not params:
        raise ConfigError("a fragment has no parameter that needs a gradient; there is nothing to exchange.")
    for name, p in params.items():
        if p.is_meta:
            raise ConfigError(f"parameter {name} is on the meta device: materialise the model first.")
        if not p.is_floating_point():
            raise ConfigError(f"parameter {name} is {p.dtype}; only floating point can be averaged.")
