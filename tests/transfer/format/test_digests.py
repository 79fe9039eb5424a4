from __future__ import annotations

import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchft_x.transfer.format.digests import digest, digest_1
from torchft_x.transfer.format.limits import BLOCK_BYTES
from torchft_x.transfer.format.memory import memory_of


@pytest.mark.parametrize("size", [1, 63, 5000, 70_001, BLOCK_BYTES])
def test_it_is_the_standard_library_s_crc32(size: int) -> None:
    """So who has no package for it makes the same digests."""
    data = torch.arange(size).to(torch.uint8)
    assert digest(data) == digest(memory_of(data)) == zlib.crc32(memory_of(data))


def test_the_first_format_s_digest_has_not_changed() -> None:
    data = (torch.arange(3 * BLOCK_BYTES + 17) * 7 % 251).to(torch.uint8)
    assert [digest_1(data), digest_1(data[:100_000]), digest_1(data[:9]), digest_1(data[3:70_000])] == [
        701583579,
        873727701,
        603648907,
        870395629,
    ]


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
