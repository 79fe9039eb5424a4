"""Digest of a block: 32 bits that detect a change in transit. Pure.

Digests don't detect malicious changes; the token protects against those.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from torchft_x.transfer.format.limits import BLOCK_BYTES
from torchft_x.transfer.format.memory import memory_of

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this processor: the same numbers from the standard library, a tenth as fast
    from zlib import crc32

_COLUMNS = 1021  # int64 words in a row of `digest_1`
_ROWS = 8  # rows summed at a time
_GROUP_BYTES = _ROWS * _COLUMNS * 8


def digest(data: Tensor | memoryview) -> int:
    """Return the crc32 of contiguous bytes (a uint8 CPU tensor, or the memory itself). Releases the interpreter lock.

    It detects every change of up to 32 consecutive bits and of any two bits, and other changes except one in 2^32.
    """
    return crc32(data if isinstance(data, memoryview) else memory_of(data))


def digest_1(data: Tensor) -> int:
    """Return the digest of the first format of durable checkpoints.

    It is the crc32 over the column sums of the bytes, seen as rows of `_COLUMNS` int64 words, and over the rest (less
    than 64 KiB).
    """
    if data.data_ptr() % 8 or data.storage_offset() % 8:
        data = data.clone()  # int64 needs alignment
    crc = 0
    for start in range(0, data.numel(), BLOCK_BYTES):
        block = data[start : start + BLOCK_BYTES]
        summed = block.numel() // _GROUP_BYTES * _GROUP_BYTES
        if summed:
            sums = block[:summed].view(torch.int64).view(-1, _ROWS, _COLUMNS).sum(1).sum(0)
            crc = zlib.crc32(memory_of(sums.view(torch.uint8)), crc)
        if summed < block.numel():
            crc = zlib.crc32(memory_of(block[summed:]), crc)
    return crc
