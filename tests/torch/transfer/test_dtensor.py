"""DTensors travel as local shards, and only between equal placements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.torch.transfer.format.test_layout import carry
from tests.torch.transfer.states import same
from torchft_x.errors import TransferError

dtensor = pytest.importorskip("torch.distributed.tensor")


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def shard(mesh: Any, value: torch.Tensor, placement: Any) -> Any:
    return dtensor.DTensor.from_local(value, mesh, [placement])


def test_a_shard_lands_in_place(mesh: Any) -> None:
    state = {"w": shard(mesh, torch.arange(6.0).view(2, 3), dtensor.Shard(0)), "plain": torch.ones(2)}
    into = {"w": shard(mesh, torch.zeros(2, 3), dtensor.Shard(0)), "plain": torch.zeros(2)}
    result = carry(state, into)
    assert result["w"] is into["w"]
    assert same(into["w"].to_local(), state["w"].to_local())


@pytest.mark.parametrize(
    "into",
    [
        lambda mesh: None,
        lambda mesh: {"a": torch.zeros(2, 3)},
        lambda mesh: {"a": shard(mesh, torch.zeros(2, 3), dtensor.Shard(1))},
        lambda mesh: {"a": shard(mesh, torch.zeros(2, 3), dtensor.Replicate())},
        lambda mesh: {"a": shard(mesh, torch.zeros(4, 3), dtensor.Shard(0))},
        lambda mesh: {"a": shard(mesh, torch.zeros(2, 3, dtype=torch.float64), dtensor.Shard(0))},
    ],
    ids=["none", "plain", "other dimension", "replicated", "other shape", "other dtype"],
)
def test_anything_else_is_refused_before_a_byte_moves(mesh: Any, into: Any) -> None:
    with pytest.raises(TransferError, match="leaf a"):
        carry({"a": shard(mesh, torch.ones(2, 3), dtensor.Shard(0))}, into(mesh))


def test_a_plain_tensor_does_not_fill_a_shard(mesh: Any) -> None:
    into = {"a": shard(mesh, torch.zeros(2, 3), dtensor.Shard(0))}
    result = carry({"a": torch.ones(2, 3)}, into)
    assert type(result["a"]) is torch.Tensor
    assert into["a"].to_local().sum() == 0
