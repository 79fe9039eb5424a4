from __future__ import annotations

from typing import Any

import pytest
import torch

from torchft_x.transfer.format.flatten import flatten
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.rebuild import find_targets


def land(state: Any, into: Any) -> Landing:
    layout, _ = flatten(state)
    return Landing(layout, find_targets(layout, into))


def test_two_writers_never_share_memory() -> None:
    shared = torch.zeros(10)
    for into in ({"a": shared, "b": shared}, {"a": shared[:6], "b": shared[4:]}):
        size = into["a"].numel()
        landing = land({"a": torch.ones(size), "b": torch.ones(size)}, into)
        assert sorted(landing.in_place) == [False, True]
        assert landing.copies_into_targets


def test_neighbours_in_one_storage_are_both_in_place() -> None:
    flat = torch.zeros(10)
    assert land({"a": torch.ones(5), "b": torch.ones(5)}, {"a": flat[:5], "b": flat[5:]}).in_place == [True, True]


def test_what_does_not_fit_lands_in_new_memory() -> None:
    state = {"a": torch.ones(4, 3)}
    for into in (
        {"a": torch.zeros(3, 4).t()}, {"a": torch.zeros(4, 4)[:, :3]}, {"a": torch.zeros(3, 4)}, {"a": [1]}, None,
        {"a": torch.zeros(4, 3).half()}, {"a": torch.zeros(4, 3, device="meta")}, {"b": torch.zeros(4, 3)},
    ):  # fmt: skip
        assert land(state, into).in_place == [False]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_target_without_memory_is_not_written_to() -> None:
    """Writing to a parameter of which FSDP1 has freed the storage ended the process with SIGSEGV."""
    freed = torch.zeros(4, 3)
    freed.untyped_storage().resize_(0)
    for into in (freed, torch.nested.nested_tensor([torch.zeros(3)] * 4)):
        landing = land({"a": torch.ones(4, 3)}, {"a": into})
        assert landing.in_place == [False]
        landing.memory[0].view(torch.float32).fill_(2.0)
        assert torch.equal(landing.finish()[0], torch.full((4, 3), 2.0))
