"""A state dict as one piece of bytes."""

from __future__ import annotations

import pytest
import torch

from torchft_x.errors import TransferError
from torchft_x.transfer.packed import pack, unpack


def test_a_state_survives() -> None:
    state = {
        "step": 7,
        "generator": torch.arange(5, dtype=torch.uint8),
        "nested": [{"x": None}, torch.ones(2, 3).T, "text"],
    }
    back = unpack(pack(state))
    assert back["step"] == 7
    assert torch.equal(back["generator"], state["generator"])  # type: ignore[arg-type]
    assert torch.equal(back["nested"][1], torch.ones(3, 2))
    assert back["nested"][::2] == [{"x": None}, "text"]


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_what_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(TransferError):
        unpack(pack({"x": torch.arange(4)})[:cut])
