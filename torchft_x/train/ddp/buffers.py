"""Warns once of buffers that training changes (the statistics of BatchNorm), because groups don't exchange them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import nn

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.transfer.format.flatten import is_dtensor

_SAMPLE = 4096  # number of values of a buffer that are compared; statistics change in all of them


@contextlib.contextmanager
def watch_buffers(module: nn.Module, *, refuse: bool) -> Iterator[None]:
    """Warn, on rank 0, of the buffers that the training forward in this block changes; or `refuse` them with a `ConfigError`."""
    before = {name: (b, sample) for name, b in module.named_buffers() if (sample := _sample(b)) is not None}
    yield
    changed = [name for name, (b, sample) in before.items() if not torch.equal(sample, _sample(b))]
    if changed and refuse:
        raise ConfigError(
            f"the forward changes the buffer {changed[0]}, as BatchNorm does, so that each group's depends on its own slots; "
            "reproducible steps need a norm without running statistics."
        )
    if changed and env.read_int(env.RANK, 0) == 0:
        warnings.warn(sentence(changed), stacklevel=4)


def _sample(buffer: torch.Tensor) -> torch.Tensor | None:
    """Copy the first values of a buffer; return None for a buffer that isn't watched.

    Tensor versions don't show the changes: BatchNorm writes its buffers without counting them up.
    """
    if not buffer.is_floating_point() or buffer.is_meta or is_dtensor(buffer):
        return None
    return buffer.detach().reshape(-1)[:_SAMPLE].clone()


def sentence(changed: list[str]) -> str:
    """Return the warning for the buffers named in `changed`."""
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return (
        f"the forward changes the buffer {changed[0]}{more}, as BatchNorm does, and groups do not exchange buffers: each keeps "
        "its own, evaluation and checkpoints use those of the group that makes them, and a group that comes back copies one. "
        "If they shall be alike, average them (docs/write_a_script.md, Buffers), or use a norm without running statistics."
    )
