from __future__ import annotations

import zlib

import pytest
import torch

from torchft_x.transfer.format.digests import digest
from torchft_x.transfer.format.limits import BLOCK_BYTES
from torchft_x.transfer.format.memory import memory_of


@pytest.mark.parametrize("size", [1, 63, 5000, 70_001, BLOCK_BYTES])
def test_it_is_the_standard_library_s_crc32(size: int) -> None:
    """So who has no package for it makes the same digests."""
    data = torch.arange(size).to(torch.uint8)
    assert digest(data) == digest(memory_of(data)) == zlib.crc32(memory_of(data))
