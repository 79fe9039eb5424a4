"""Blocks: the stream of a snapshot cut into pieces of at most 1 MiB, each with its own digest. Pure.

Large blobs are cut by themselves, so that a block lies in one tensor and can be received in place. Small blobs follow
in shared blocks. Both sides compute the same cut from the blobs' sizes; it is never sent.

Digests don't detect malicious changes; the token protects against those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from torchft_x.transfer.format.limits import ALIGNMENT, BLOCK_BYTES, SMALL_BLOB_BYTES
from torchft_x.transfer.format.memory import memory_of, uncollected

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this processor: the same numbers from the standard library, a tenth as fast
    from zlib import crc32


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of one blob inside a block. Offsets and sizes are in bytes."""

    blob: int  # index of the blob
    blob_offset: int
    block_offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Block:
    """Range of the stream. A block with one piece that fills it can be received in place."""

    start: int  # byte in the stream
    nbytes: int
    pieces: tuple[Piece, ...]


def place_blobs(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where each blob starts in the stream, and the length of the stream. Large blobs come first."""
    starts = [0] * len(sizes)
    end = 0
    for small in (False, True):
        for i, size in enumerate(sizes):
            if (size < SMALL_BLOB_BYTES) is small:
                starts[i] = end
                end += -(-size // ALIGNMENT) * ALIGNMENT
    return starts, end


@uncollected
def cut_blocks(sizes: Sequence[int]) -> tuple[Block, ...]:
    """Return the blocks of a stream, in its order."""
    starts, _ = place_blobs(sizes)
    blocks: list[Block] = []
    shared: list[Piece] = []
    shared_start = 0
    for i in sorted(range(len(sizes)), key=lambda i: starts[i]):
        size = sizes[i]
        if size >= SMALL_BLOB_BYTES:
            for offset in range(0, size, BLOCK_BYTES):
                n = min(BLOCK_BYTES, size - offset)
                blocks.append(Block(starts[i] + offset, n, (Piece(i, offset, 0, n),)))
            continue
        if shared and starts[i] + size - shared_start > BLOCK_BYTES:
            blocks.append(_shared_block(shared_start, shared))
            shared = []
        if not shared:
            shared_start = starts[i]
        shared.append(Piece(i, 0, starts[i] - shared_start, size))
    if shared:
        blocks.append(_shared_block(shared_start, shared))
    return tuple(blocks)


def _shared_block(start: int, pieces: list[Piece]) -> Block:
    return Block(start, pieces[-1].block_offset + pieces[-1].nbytes, tuple(pieces))


def share_out(blocks: Sequence[Block], parts: int) -> list[tuple[int, int]]:
    """Return at most `parts` ranges ``(first, end)`` of block indices, of about equal bytes, none empty."""
    total = sum(block.nbytes for block in blocks)
    ranges: list[tuple[int, int]] = []
    first = done = 0
    for i, block in enumerate(blocks):
        done += block.nbytes
        if done * parts >= total * (len(ranges) + 1) or i == len(blocks) - 1:
            ranges.append((first, i + 1))
            first = i + 1
    return ranges


def digest(data: Tensor | memoryview) -> int:
    """Return the crc32 of contiguous bytes (a uint8 CPU tensor, or the memory itself). Releases the interpreter lock.

    It detects every change of up to 32 consecutive bits and of any two bits, and other changes except one in 2^32.
    """
    return crc32(data if isinstance(data, memoryview) else memory_of(data))
