"""A checkpoint that is written from a copy in memory: the same as one that is written from the state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Shard as Cut

from tests.torch.transfer.durable.saving import WAIT, as_rank, cut, load
from tests.torch.transfer.states import same
from torchft_x.core.types import State
from torchft_x.errors import TransferError
from torchft_x.transfer.durable import names, writer
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.shard import outline
from torchft_x.transfer.durable.store import Store
from torchft_x.transfer.from_memory.held import KEY, HeldCheckpoint, held_in
from torchft_x.transfer.memory_slots import MemorySlot


def held_of(state: Any, rank: int = 0, ranks: int = 1) -> HeldCheckpoint:
    return HeldCheckpoint("file:///a:secret@b", "job", "0-a", 2, outline(state, rank=rank, ranks=ranks))


def slot_with(state_dict: Any) -> MemorySlot:
    slot = MemorySlot(os.memfd_create("slot", os.MFD_CLOEXEC), 1 << 26)
    slot.grow(slot.room_for(state_dict))
    assert slot.write(State(7, 3), state_dict)
    slot.seal()
    return slot


def test_what_both_hold_is_in_memory_once() -> None:
    weights = torch.randn(1 << 16)
    state = {"user": weights, "torchft": {"step": 7}}
    alone, both = slot_with(state), slot_with({KEY: held_of({"parts": {"w": weights}}).tree(), **state})
    try:
        assert both._size < alone._size + weights.nbytes / 4
        assert same(both.read_first(KEY)["tensors"], [weights])
        assert both.read({"user": weights, "torchft": {}})["user"] is weights
        assert alone.read_first(KEY) is None
    finally:
        alone.close()
        both.close()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_from_memory_is_one_from_the_state(ranks: int, tmp_path: Path) -> None:
    """Also where the script's own state can't be read by others: shards, and types that are registered there only."""
    whole = torch.randn(6, 5)
    store, name = Store(str(tmp_path)), names.name(7, "0-a")
    for rank in reversed(range(ranks)):
        with as_rank(rank, (ranks,)) as mesh:
            shard = cut(whole, mesh, [Cut(0)])
            parts = {"parts": {"w": shard, "lr": 0.5, "tied": [torch.ones(3)]}, "torchft": {"step": 7}}
            slot = slot_with({KEY: held_of(parts, rank, ranks).tree(), "user": shard, "torchft": {"step": 7}})
            shard.to_local().zero_()  # the state goes on
        held = held_in(slot.read_first(KEY))  # outside of the mesh, as another process is
        slot.close()
        frozen = held.outline.freeze(step=7, committed_in=3)
        writer.write_shard(store, name, frozen)
    writer.complete(store, name, frozen, job=held.job, timeout=WAIT)
    assert newest(store) == name
    loaded = load(store)
    assert same(loaded["parts"]["w"], whole)
    assert (loaded["parts"]["lr"], loaded["torchft"]) == (0.5, {"step": 7})


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(held_of({"w": torch.ones(2)}))


@pytest.mark.parametrize(
    "tree",
    [
        None,
        {},
        {"head": 3, "tensors": []},
        {"head": torch.frombuffer(bytearray(b"{}\n{}"), dtype=torch.uint8), "tensors": []},
        {**held_of({"w": torch.ones(2)}).tree(), "tensors": []},
        {**held_of({"w": torch.ones(2)}).tree(), "tensors": [3]},
    ],
)
def test_what_is_no_description_is_refused(tree: Any) -> None:
    with pytest.raises(TransferError):
        held_in(tree)
