from __future__ import annotations

import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchft_x.transfer.format.blocks import cut_blocks, digest, place_blobs, share_out
from torchft_x.transfer.format.limits import ALIGNMENT, BLOCK_BYTES, SMALL_BLOB_BYTES
from torchft_x.transfer.format.memory import memory_of

sizes_lists = st.lists(
    st.one_of(st.integers(1, 3000), st.integers(SMALL_BLOB_BYTES - 2, SMALL_BLOB_BYTES + 2), st.integers(1, 5 << 20)),
    max_size=40,
)


@settings(deadline=None)
@given(sizes_lists)
def test_blocks_hold_every_byte_of_every_blob_once(sizes: list[int]) -> None:
    starts, length = place_blobs(sizes)
    covered = [0] * len(sizes)
    end = 0
    for block in cut_blocks(sizes):
        assert end <= block.start < end + ALIGNMENT
        assert 0 < block.nbytes <= BLOCK_BYTES
        end = block.start + block.nbytes
        for piece in block.pieces:
            assert piece.blob_offset == covered[piece.blob]
            assert block.start + piece.block_offset == starts[piece.blob] + piece.blob_offset
            assert piece.block_offset + piece.nbytes <= block.nbytes
            covered[piece.blob] += piece.nbytes
        if len(block.pieces) == 1:
            assert block.pieces[0].nbytes == block.nbytes
    assert covered == sizes
    assert end <= length


@settings(deadline=None)
@given(sizes_lists, st.integers(1, 8))
def test_ranges_are_balanced_and_complete(sizes: list[int], parts: int) -> None:
    blocks = cut_blocks(sizes)
    ranges = share_out(blocks, parts)
    assert len(ranges) <= parts
    assert [i for first, end in ranges for i in range(first, end)] == list(range(len(blocks)))
    total = sum(b.nbytes for b in blocks)
    for first, end in ranges:
        assert end > first
        assert sum(b.nbytes for b in blocks[first:end]) <= total / parts + BLOCK_BYTES


@pytest.mark.parametrize("size", [1, 63, 5000, 70_001, BLOCK_BYTES])
def test_it_is_the_standard_library_s_crc32(size: int) -> None:
    """So who has no package for it makes the same digests."""
    data = torch.arange(size).to(torch.uint8)
    assert digest(data) == digest(memory_of(data)) == zlib.crc32(memory_of(data))
