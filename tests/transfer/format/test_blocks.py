from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchft_x.transfer.format.blocks import cut_blocks, digest, place_blobs, share_out
from torchft_x.transfer.format.limits import ALIGNMENT, BLOCK_BYTES, SMALL_BLOB_BYTES

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


def test_digest_is_the_same_at_any_address() -> None:
    data = torch.randint(0, 256, (70001,), dtype=torch.uint8)
    moved = torch.empty(70004, dtype=torch.uint8)[3:]
    moved.copy_(data)
    assert digest(moved) == digest(data)


@settings(deadline=None)
@given(st.integers(1, 200_000), st.data())
def test_any_flipped_bit_changes_the_digest(size: int, data: st.DataObject) -> None:
    block = torch.arange(size).to(torch.uint8)
    before = digest(block)
    block[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert digest(block) != before


def test_swapped_words_change_the_digest() -> None:
    block = torch.randint(0, 256, (BLOCK_BYTES,), dtype=torch.uint8)
    words = block.view(torch.int64)
    before = digest(block)
    for a, b in [(0, 1), (0, 256), (0, 512), (0, 1024), (5, 512 * 7 + 5), (3, 900)]:
        words[[a, b]] = words[[b, a]]
        assert digest(block) != before
        words[[a, b]] = words[[b, a]]
    assert digest(block) == before


@pytest.mark.parametrize("nbytes", [512, 1448, 4096, 65483])
def test_swapped_and_repeated_pieces_change_the_digest(nbytes: int) -> None:
    block = torch.randint(0, 256, (BLOCK_BYTES,), dtype=torch.uint8)
    before = digest(block)
    pieces = BLOCK_BYTES // nbytes
    for a, b in [(0, 1), (0, pieces - 1), (1, 3), (2, pieces // 2)]:
        damaged = block.clone()
        first, second = (slice(i * nbytes, (i + 1) * nbytes) for i in (a, b))
        damaged[first] = block[second]
        assert digest(damaged) != before
        damaged[second] = block[first]
        assert digest(damaged) != before


def test_a_burst_changes_the_digest() -> None:
    block = torch.zeros(BLOCK_BYTES, dtype=torch.uint8)
    before = digest(block)
    generator = torch.Generator().manual_seed(3)
    for nbytes in (2, 9, 100, 8000):
        for _ in range(50):
            at = int(torch.randint(0, BLOCK_BYTES - nbytes, (1,), generator=generator))
            damaged = block.clone()
            damaged[at : at + nbytes] = torch.randint(1, 256, (nbytes,), generator=generator, dtype=torch.uint8)
            assert digest(damaged) != before


def test_every_block_of_long_data_counts() -> None:
    data = torch.zeros(3 * BLOCK_BYTES + 17, dtype=torch.uint8)
    seen = {digest(data)}
    for at in (0, BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 16):
        damaged = data.clone()
        damaged[at] = 1
        seen.add(digest(damaged))
    assert len(seen) == 6
