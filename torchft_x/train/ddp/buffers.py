"""Buffers that training changes (the running statistics of BatchNorm) differ between groups; who has some is told once."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import nn

from torchft_x import env
from torchft_x.train.ddp.shards import is_dtensor

_SAMPLE = 4096  # values of a buffer that are compared: statistics change all over


@contextlib.contextmanager
def watch_buffers(module: nn.Module) -> Iterator[None]:
    """Around a training forward: warn of the buffers it changes, on rank 0."""
    before = {name: (b, sample) for name, b in module.named_buffers() if (sample := _sample(b)) is not None}
    yield
    changed = [name for name, (b, sample) in before.items() if not torch.equal(sample, _sample(b))]
    if changed and env.read_int(env.RANK, 0) == 0:
        warnings.warn(sentence(changed), stacklevel=4)


def _sample(buffer: torch.Tensor) -> torch.Tensor | None:
    """None: such a buffer isn't looked at. (Versions of tensors don't help: BatchNorm changes its own behind them.)"""
    if not buffer.is_floating_point() or buffer.is_meta or is_dtensor(buffer):
        return None
    return buffer.detach().reshape(-1)[:_SAMPLE].clone()


def sentence(changed: list[str]) -> str:
    """`changed`: names of buffers."""
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return (
        f"the forward changes the buffer {changed[0]}{more}, as BatchNorm does, and groups do not exchange buffers: each keeps "
        "its own, evaluation and checkpoints use those of the group that makes them, and a group that comes back copies one. "
        "If they shall be alike, average them (docs/write_a_script.md, Buffers), or use a norm without running statistics."
    )
