"""Permute the samples of an epoch in constant memory.

A Feistel network over pairs (i, j) with i < a and j < b, where a * b is just above the number of samples. Values at or above
the number of samples are encrypted again (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
"""

from __future__ import annotations

import functools
import hashlib
import math

_ROUNDS = 6
_MASK = (1 << 64) - 1


def permute(position: int, length: int, seed: int, epoch: int) -> int:
    """Return the sample at `position` of the epoch: a bijection of 0 .. length - 1 for each (seed, epoch).

    Raises ValueError if `position` is not in that range.
    """
    if not 0 <= position < length:
        raise ValueError(f"position {position} is not in an epoch of {length} samples.")
    a = math.isqrt(length - 1) + 1
    b = -(-length // a)
    keys = _keys(seed, epoch)
    while True:
        left, right = divmod(position, b)
        for key in keys:
            left = (left + _mix(right ^ key)) % a
            right = (right + _mix(left ^ ~key & _MASK)) % b
        position = left * b + right
        if position < length:
            return position


@functools.lru_cache(maxsize=8)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    data = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return tuple(int.from_bytes(data[8 * i : 8 * i + 8], "big") for i in range(_ROUNDS))


def _mix(x: int) -> int:
    """Return a hash of 64 bits: the finaliser of MurmurHash3."""
    x = ((x ^ x >> 33) * 0xFF51AFD7ED558CCD) & _MASK
    x = ((x ^ x >> 33) * 0xC4CEB9FE1A85EC53) & _MASK
    return x ^ x >> 33
