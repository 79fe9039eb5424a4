"""Refuse tensors whose memory has holes: torch's gloo would use contiguous memory from their first value on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchft_x.errors import ConfigError

IN_MEMORY_ORDER = frozenset(["allreduce", "allreduce_coalesced", "alltoall_base", "broadcast"])
"""Operations of gloo that take the memory as it is. The other operations copy, or refuse with a clear error."""


def check_dense(tensor: torch.Tensor) -> None:
    """Raise `ConfigError` unless the values fill the memory without holes or overlaps, in any order of dimensions."""
    if tensor.layout is not torch.strided:
        raise ConfigError(f"a tensor of layout {tensor.layout} can't be reduced; give a dense one (to_dense()).")
    if tensor.is_contiguous():
        return
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride != expected:
            raise ConfigError(
                f"a tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} is a view with holes or overlaps, as a "
                "column or every second value is; reduce a copy (contiguous()), and write the result back."
            )
        expected *= size


def check_arguments(arguments: Iterable[Any]) -> None:
    """Call `check_dense` for each tensor among an operation's arguments."""
    for argument in arguments:
        for tensor in argument if isinstance(argument, list) else [argument]:
            if isinstance(tensor, torch.Tensor):
                check_dense(tensor)
