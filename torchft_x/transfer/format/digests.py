"""The digest of a block: 32 bits by which it is known to have come as it was. Pure.

They find no malice; that is the token's work.
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
_ROWS = 8  # summed at a time
_GROUP_BYTES = _ROWS * _COLUMNS * 8


def digest(data: Tensor | memoryview) -> int:
    """crc32 of contiguous bytes (a uint8 CPU tensor, or the memory itself). Lets other threads run meanwhile.

    A change of up to 32 bits in a row, and any of two bits, changes it for certain; anything else but for one case in 2^32.
    """
    return crc32(data if isinstance(data, memoryview) else memory_of(data))


def digest_1(data: Tensor) -> int:
    """What shards of the first format of durable checkpoints have: crc32 over the sums of the columns of its bytes, seen as
    rows of `_COLUMNS` int64 words, and over the rest (less than 64 KiB).
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
