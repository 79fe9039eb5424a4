"""Declares a model's parameters and the way they are reduced, so that groups that differ are refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from torchft_x.core.fingerprint import BUCKETS, MODEL
from torchft_x.train.ddp.buckets import Bucket, layout_digest

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


def declare_model(manager: Manager, module: nn.Module, buckets: Sequence[Bucket]) -> None:
    """Declare names, shapes and dtypes of a module's parameters, and the flat buffers in which they are reduced.

    Raises `ConfigError` if the Manager's process group can't reduce tensors on the buckets' devices.
    """
    for kind in sorted({b.device.type for b in buckets}):
        manager.check_device(kind)
    manager.context.committed.name(module)
    params = list(module.named_parameters())
    values = sum(math.prod(p.shape) for _, p in params)
    manager.declare(MODEL, f"{len(params)} tensors, {values:,} values", [_parameter(name, p) for name, p in params])
    manager.declare(
        BUCKETS,
        f"{len(buckets)} buckets",
        [f"bucket {i} of {b.numel:,} values {_dtype(b.dtype)}" for i, b in enumerate(buckets)],
        layout_digest(buckets),
    )


def declare_fragments(manager: Manager, modules: Sequence[nn.Module], how: str) -> None:
    """Declare the parameters of all fragments of a model, and `how` they are exchanged."""
    params = [(f"{i}: {name}", p) for i, m in enumerate(modules) for name, p in m.named_parameters()]
    values = sum(math.prod(p.shape) for _, p in params)
    words = f"{len(modules)} fragments, {len(params)} tensors, {values:,} values"
    manager.declare(MODEL, words, [_parameter(name, p) for name, p in params])
    manager.declare("exchange", how)


def _parameter(name: str, p: torch.Tensor) -> str:
    """Return name, shape and dtype. The shape is the whole parameter's, even if this rank holds only a shard."""
    return f"{name} {tuple(p.shape)} {_dtype(p.dtype)}{'' if p.requires_grad else ' frozen'}"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
