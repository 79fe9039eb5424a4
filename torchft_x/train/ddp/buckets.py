"""Plans the place of each gradient in the flat buffers that are reduced: once, from shapes, alike in every group.

The order never changes afterwards. Gloo matches collectives by order and aborts the process when sizes differ,
so a group that joins late must have the same buckets as the running groups.

Order and sizes follow torch's DistributedDataParallel: parameters backwards (gradients arrive about in that order), a
small first bucket so that communication starts early, then larger ones.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torchft_x.train.ddp.shards import like

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
# Gradients below this size are copied faster by one _foreach_copy_ per bucket than by a call for each.
SMALL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter's place in a flat buffer. Offset and stride count elements."""

    index: int  # index of the parameter
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Layout of a flat buffer: small gradients, large ones and, in the last bucket, a presence flag per parameter."""

    dtype: torch.dtype
    device: torch.device
    small: tuple[Slot, ...]
    large: tuple[Slot, ...]
    num_flags: int = 0

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.small + self.large

    @property
    def num_small(self) -> int:
        """Number of elements of the small gradients, which start at 0."""
        return sum(s.numel for s in self.small)

    @property
    def num_gradients(self) -> int:
        return sum(s.numel for s in self.slots)

    @property
    def numel(self) -> int:
        return self.num_gradients + self.num_flags


def plan_buckets(
    params: Sequence[torch.Tensor], *,
    first_bytes: int = FIRST_BUCKET_BYTES, bucket_bytes: int = BUCKET_BYTES, flags: bool = True,
) -> tuple[Bucket, ...]:  # fmt: skip
    """Plan buckets for `params` (in the order of ``module.parameters()``). A bucket holds one dtype on one device.

    A bucket is closed when it has reached its size, so a single large parameter may exceed it. With
    `flags` the last one has presence flags.
    """
    open_buckets: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    filled: dict[tuple[torch.dtype, torch.device], int] = {}  # bytes in the open buckets
    closed: list[list[int]] = []
    for index in reversed(range(len(params))):
        p = params[index]
        key = (p.dtype, p.device)
        open_buckets.setdefault(key, []).append(index)
        filled[key] = filled.get(key, 0) + _nbytes(p)
        cap = first_bytes if not closed else bucket_bytes
        if filled[key] >= cap:
            closed.append(open_buckets.pop(key))
            del filled[key]
    closed.extend(open_buckets.values())
    last = len(closed) - 1
    return tuple(
        _bucket(params, members, len(params) if flags and k == last else 0) for k, members in enumerate(closed)
    )


def layout_digest(buckets: Sequence[Bucket]) -> str:
    """Return a digest that is equal if and only if two groups may reduce together.

    Devices may differ; the order of elements may not.
    """
    text = json.dumps(
        [[str(b.dtype), b.num_flags, [[s.index, s.offset, s.shape, s.stride] for s in b.slots]] for b in buckets]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _bucket(params: Sequence[torch.Tensor], members: Sequence[int], num_flags: int) -> Bucket:
    small = [i for i in members if _nbytes(params[i]) < SMALL_BYTES]
    large = [i for i in members if _nbytes(params[i]) >= SMALL_BYTES]
    slots: list[Slot] = []
    offset = 0
    for i in small + large:
        p = params[i]
        slots.append(Slot(i, offset, tuple(p.shape), _stride(p)))
        offset += p.numel()
    first = params[members[0]]
    return Bucket(first.dtype, first.device, tuple(slots[: len(small)]), tuple(slots[len(small) :]), num_flags)


def _stride(p: torch.Tensor) -> tuple[int, ...]:
    """Return the parameter's strides if they leave no gaps (so optimizers see equal layouts), else contiguous ones."""
    dense = p.is_contiguous()
    if p.dim() == 4:
        dense = dense or p.is_contiguous(memory_format=torch.channels_last)
    elif p.dim() == 5:
        dense = dense or p.is_contiguous(memory_format=torch.channels_last_3d)
    if dense:
        return tuple(p.stride())
    return tuple(math.prod(p.shape[d + 1 :]) for d in range(p.dim()))


def _nbytes(p: torch.Tensor) -> int:
    return p.numel() * p.element_size()


class FlatBuffers:
    """A set of flat buffers, with a view per parameter."""

    def __init__(self, buckets: Sequence[Bucket], params: Sequence[torch.Tensor]) -> None:
        # zero_() touches the memory, unlike torch.zeros: page faults would slow the first backward.
        self.flat = [torch.empty(b.numel, dtype=b.dtype, device=b.device).zero_() for b in buckets]
        self.flags = self.flat[-1][buckets[-1].num_gradients :]
        slots = sorted(
            ((s, flat) for b, flat in zip(buckets, self.flat, strict=True) for s in b.slots), key=lambda x: x[0].index
        )
        self.views = [torch.as_strided(flat, s.shape, s.stride, s.offset) for s, flat in slots]
        self.grads = [like(p, v) for p, v in zip(params, self.views, strict=True)]  # views as ``p.grad``

    def fill(self, grads: Sequence[torch.Tensor | None]) -> bool:
        """Copy gradients to their places, zeros for missing ones, and set the flags. Return whether none is missing."""
        for view, grad in zip(self.views, grads, strict=True):
            if grad is None:
                view.zero_()
            else:
                view.copy_(grad)
        came = [grad is not None for grad in grads]
        self.flags.copy_(torch.tensor(came))
        return False not in came


def buckets_by_index(buckets: Sequence[Bucket]) -> list[tuple[int, bool]]:
    """Return the index of each parameter's bucket, and whether its gradient is small."""
    found = {s.index: (k, i < len(b.small)) for k, b in enumerate(buckets) for i, s in enumerate(b.slots)}
    return [found[i] for i in range(len(found))]
