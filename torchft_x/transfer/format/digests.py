"""Digest of a block: 32 bits that detect a change in transit. Pure.

Digests don't detect malicious changes; the token protects against those.
"""

from __future__ import annotations

from torch import Tensor

from torchft_x.transfer.format.memory import memory_of

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this processor: the same numbers from the standard library, a tenth as fast
    from zlib import crc32


def digest(data: Tensor | memoryview) -> int:
    """Return the crc32 of contiguous bytes (a uint8 CPU tensor, or the memory itself). Releases the interpreter lock.

    It detects every change of up to 32 consecutive bits and of any two bits, and other changes except one in 2^32.
    """
    return crc32(data if isinstance(data, memoryview) else memory_of(data))
