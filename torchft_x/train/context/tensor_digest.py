"""Digests of tensors: numbers that two tensors share only if their bits are the same, but for bad luck.

They guard against results and states that differ by accident (memory, a defect of a reduction, a heal that lost
something), not against somebody who wants them to look alike. See docs/decisions/0026.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

TURNS = 16  # a sixteenth of a large tensor is looked at each time
BLOCK_BYTES = 4096  # every sixteenth block of this size
WHOLE_BYTES = 1 << 20
"""What is smaller is looked at in whole: to pick out blocks costs as much, and it is read next anyway."""

_MASK = (1 << 64) - 1
_PRIME = 0x9E3779B97F4A7C15  # spreads what is folded in over all 64 bits
_WORDS = BLOCK_BYTES // 8


def digest(tensor: torch.Tensor, turn: int | None = None) -> int:
    """Return 64 bits, unsigned: the wrapping sum of the tensor's bytes read as int64.

    `turn` counts up from step to step (None: all of it, always). Of more than `WHOLE_BYTES` every sixteenth block is
    read, other ones each time, and what is left over behind the last sixteen. So what differs in 64 KiB on end is seen
    at once (gloo's pieces have up to 1 MiB), what goes on differing within 16 turns, and a single word that differs
    once with one chance in 16. Reading all of it costs 5 % of a step on a CPU (docs/decisions/0026).
    """
    return int(sum_words(tensor, turn)) & _MASK


def sum_words(tensor: torch.Tensor, turn: int | None = None) -> torch.Tensor:
    """Return the digest as an int64 of no dimension on the tensor's device, which is not waited for."""
    words, rest = _words(tensor)
    if turn is None or tensor.nbytes <= WHOLE_BYTES:
        total = words.sum()
    else:
        rows = words.numel() // (TURNS * _WORDS)
        even = rows * TURNS * _WORDS
        place = words.storage_offset() + turn % TURNS * _WORDS
        total = words.as_strided((rows, _WORDS), (TURNS * _WORDS, 1), place).sum()
        if even < words.numel():
            total = total + words[even:].sum()
    return total if rest is None else total + rest


def fold(digests: Iterable[int]) -> int:
    """Return one digest for several, in their order."""
    digests = list(digests)
    total = len(digests)
    for d in digests:
        total = ((total ^ d) * _PRIME + (total >> 29)) & _MASK
    return total


def _words(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the tensor's memory as int64, and the sum of the bytes behind it that fill no word; None: there are none."""
    data = tensor.detach() if tensor.requires_grad else tensor
    if data.dim() == 1 and data.is_contiguous() and (data.nbytes | data.storage_offset()) % 8 == 0:
        return data.view(torch.int64), None  # as below, for what is usual
    if not data.is_contiguous():
        data = data.contiguous()
    raw = data.reshape(-1).view(torch.uint8)
    whole = raw.numel() // 8 * 8
    if raw.storage_offset() % 8:  # a view into the middle of a storage can't be read in words
        raw = raw.clone()
    rest = raw[whole:].sum(dtype=torch.int64) if whole < raw.numel() else None
    return raw[:whole].view(torch.int64), rest
