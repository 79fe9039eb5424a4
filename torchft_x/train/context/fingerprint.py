"""What this rank says must be alike in all groups (`core.fingerprint`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from torchft_x._version import __version__
from torchft_x.comm.quantized.format import Format
from torchft_x.core.fingerprint import (
    BUCKETS,
    LIBRARY,
    MODEL,
    QUANTIZATION,
    TORCH,
    WORLD_SIZE,
    Trait,
    Traits,
    describe,
    release,
    within_limits,
)
from torchft_x.errors import ConfigError
from torchft_x.train.context.buckets import Bucket, layout_digest

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


class Declarations:
    """Grows until training begins. `may_differ`: names that are left out, so that nothing is compared."""

    def __init__(self, world_size: int, may_differ: Collection[str]) -> None:
        if isinstance(may_differ, str):
            raise ConfigError(f"may_differ is {may_differ!r}; give a tuple of names: ({may_differ!r},).")
        self._may_differ = frozenset(may_differ)
        self._count: dict[str, int] = {}  # how often a name was declared
        self._quantization: str | None = None  # a format's name, or that there is none; None: not said yet
        self.traits = Traits()  # replaced by each `add`
        self._append(release(LIBRARY, __version__))
        self._append(release(TORCH, str(torch.__version__)))
        self.add(WORLD_SIZE, str(world_size))

    def add(self, name: str, words: str, parts: Sequence[str] = (), digest: str = "") -> None:
        """Raises `ConfigError` without a name."""
        nth = self._count[name] = self._count.get(name, 0) + 1
        if name not in self._may_differ:
            self._append(describe(name if nth == 1 else f"{name} {nth}", words, parts, digest))

    def quantizes(self, fmt: Format | None) -> None:
        """This group's reductions are quantised so (None: not at all). Raises `ConfigError` if it said otherwise before."""
        name = "none" if fmt is None else fmt.name
        if self._quantization is None:
            self._quantization = name
            self.add(QUANTIZATION, name)
        elif name != self._quantization:
            raise ConfigError(
                f"this group has declared quantisation {self._quantization}, and {name} is asked for; use one format in "
                "the whole job (declare_quantization, should_quantize): a group that sends another one is not understood."
            )

    def _append(self, trait: Trait) -> None:
        if trait.name not in self._may_differ:
            self.traits = within_limits((*self.traits.items, trait))


def declare_model(manager: Manager, module: nn.Module, buckets: Sequence[Bucket]) -> None:
    """Names, shapes and dtypes of a module's parameters, and the flat buffers in which they are reduced.

    Raises `ConfigError` if the manager's process group can't reduce where they are.
    """
    for kind in sorted({b.device.type for b in buckets}):
        manager.check_device(kind)
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
    """The parameters of all fragments of a model, and `how` they are exchanged."""
    params = [(f"{i}: {name}", p) for i, m in enumerate(modules) for name, p in m.named_parameters()]
    values = sum(math.prod(p.shape) for _, p in params)
    words = f"{len(modules)} fragments, {len(params)} tensors, {values:,} values"
    manager.declare(MODEL, words, [_parameter(name, p) for name, p in params])
    manager.declare("exchange", how)


def _parameter(name: str, p: torch.Tensor) -> str:
    """The whole parameter's shape, also where this rank holds a shard of it."""
    return f"{name} {tuple(p.shape)} {_dtype(p.dtype)}{'' if p.requires_grad else ' frozen'}"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
