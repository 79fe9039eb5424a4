"""A number that two tensors share only if their bits are the same, but for bad luck; of large ones, of a sixteenth of them."""

from __future__ import annotations

import torch

TURNS = 16  # a sixteenth of a large tensor is looked at each time
BLOCK_BYTES = 4096  # every sixteenth block of this size
WHOLE_BYTES = (
    1 << 20
)  # what is smaller is looked at in whole: to pick out blocks costs as much, and it is read next anyway

_MASK = (1 << 64) - 1
_PRIME = 0x9E3779B97F4A7C15  # spreads what is folded in over all 64 bits
_WORDS = BLOCK_BYTES // 8


def digest(tensor: torch.Tensor, turn: int | None = None) -> int:
    """64 bits, unsigned: the wrapping sum of the tensor's bytes read as int64. It guards against results that differ
    by accident (memory, a defect of a reduction), not against somebody who wants them to look alike.

    `turn` counts up from step to step (None: all of it, always). Of more than `WHOLE_BYTES` every sixteenth block is
    read, other ones each time, and what is left over behind the last sixteen. So what differs in 64 KiB on end is seen
    at once (gloo's pieces have up to 1 MiB), what goes on differing within 16 turns, and a single word that differs
    once with one chance in 16. Reading all of it costs 5 % of a step on a CPU (docs/decisions/0026).
    """
    words, rest = _words(tensor)
    if turn is None or tensor.nbytes <= WHOLE_BYTES:
        return (int(words.sum()) + rest) & _MASK
    rows = words.numel() // (TURNS * _WORDS)
    even = rows * TURNS * _WORDS
    place = words.storage_offset() + turn % TURNS * _WORDS
    total = int(words.as_strided((rows, _WORDS), (TURNS * _WORDS, 1), place).sum())
    if even < words.numel():
        total += int(words[even:].sum())
    return (total + rest) & _MASK


def fold(digests: list[int]) -> int:
    """One digest for several, in their order."""
    total = len(digests)
    for d in digests:
        total = ((total ^ d) * _PRIME + (total >> 29)) & _MASK
    return total


def _words(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The tensor's memory as int64, and the sum of the bytes behind it that fill no word."""
    data = tensor.detach() if tensor.requires_grad else tensor
    if data.dim() == 1 and data.is_contiguous() and (data.nbytes | data.storage_offset()) % 8 == 0:
        return data.view(torch.int64), 0  # as below, for what is usual
    if not data.is_contiguous():
        data = data.contiguous()
    raw = data.reshape(-1).view(torch.uint8)
    whole = raw.numel() // 8 * 8
    if raw.storage_offset() % 8:  # a view into the middle of a storage can't be read in words
        raw = raw.clone()
    return raw[:whole].view(torch.int64), int(raw[whole:].sum(dtype=torch.int64))
