"""A number that two tensors share only if their bits are the same, but for bad luck. It costs one pass over the memory."""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1
_PRIME = 0x9E3779B97F4A7C15  # spreads what is folded in over all 64 bits


def digest(tensor: torch.Tensor) -> int:
    """64 bits, unsigned: the wrapping sum of the tensor's bytes read as int64. It guards against results that differ
    by accident (memory, a defect of a reduction), not against somebody who wants them to look alike.
    """
    if tensor.dim() == 1 and tensor.is_contiguous() and (tensor.nbytes | tensor.storage_offset()) % 8 == 0:
        return int(tensor.detach().view(torch.int64).sum()) & _MASK  # as below, for what is usual
    data = tensor.detach()
    if not data.is_contiguous():
        data = data.contiguous()
    raw = data.reshape(-1).view(torch.uint8)
    whole = raw.numel() // 8 * 8
    start = raw.storage_offset() % 8
    if start:  # a view into the middle of a storage can't be read in words
        raw = raw.clone()
    total = int(raw[:whole].view(torch.int64).sum()) if whole else 0
    if whole < raw.numel():
        total += int(raw[whole:].sum(dtype=torch.int64))
    return total & _MASK


def fold(digests: list[int]) -> int:
    """One digest for several, in their order."""
    total = len(digests)
    for d in digests:
        total = ((total ^ d) * _PRIME + (total >> 29)) & _MASK
    return total
