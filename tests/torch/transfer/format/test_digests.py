from __future__ import annotations

import zlib

import pytest
import torch

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
    found = [digest_1(part) for part in (data, data[:100_000], data[:9], data[3:70_000])]
    assert found == [701583579, 873727701, 603648907, 870395629]
