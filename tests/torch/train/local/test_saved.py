"""What groups that train apart save in a checkpoint, and load with another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from tests.torch.transfer.durable.saving import WAIT, as_rank, cut
from torchft_x.errors import ConfigError
from torchft_x.train.checkpoint.parts import places
from torchft_x.train.ddp.shards import local
from torchft_x.train.local.diloco import DiLoCo
from torchft_x.train.local.fragments import Fragment
from torchft_x.train.local.local_sgd import LocalSGD
from torchft_x.train.manager import Manager
from torchft_x.transfer.durable import names, writer
from torchft_x.transfer.durable.names import Name
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.shard import freeze
from torchft_x.transfer.durable.store import Store

ROWS = 5  # over 2 ranks 3 and 2, over 3 ranks 2, 2 and 1


class Model(nn.Module):
    """One sharded weight, one that is whole on each rank."""

    def __init__(self, value: float, mesh: DeviceMesh | None) -> None:
        super().__init__()
        weight = torch.arange(ROWS * 3.0).view(ROWS, 3) + value
        self.weight = nn.Parameter(weight if mesh is None else cut(weight, mesh, [Shard(0)]))
        self.scale = nn.Parameter(torch.full((2,), value))


class Loop:
    def __init__(self, held: Any) -> None:
        self.held = held

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held.saved()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held.load_saved(state["held"])


def fragment(value: float, mesh: DeviceMesh | None) -> Fragment:
    model = Model(value, mesh)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    return Fragment(model, outer, carries_outer=True, device=None, pin_memory=False, alpha=0.0)


def exchanged(mesh: DeviceMesh | None) -> Fragment:
    made = fragment(1.0, mesh)
    made.apply([torch.full_like(t, 0.5) for t in made.tensors()])
    return made


def momentum(of: Fragment) -> list[torch.Tensor]:
    return [local(values["momentum_buffer"]) for values in of._outer.state_dict()["state"].values()]


def load(store: Store, name: Name, into: Any) -> None:
    saved = Saved(store, name)
    parts = {"loop": Loop(into)}
    state = saved.load({"parts": places(parts, saved.shapes()["parts"])})
    parts["loop"].load_state_dict(state["parts"]["loop"])


def saved_by_two(tmp_path: Path, make: Any) -> tuple[Store, Name]:
    store, name = Store(str(tmp_path / "saved")), names.name(7, "0-a")
    for rank in (1, 0):
        with as_rank(rank, (2,)) as mesh:
            shard = freeze({"parts": {"loop": Loop(make(mesh)).state_dict()}}, step=7, rank=rank, ranks=2)
        writer.write_shard(store, name, shard)
    writer.complete(store, name, shard, job="job", timeout=WAIT)
    return store, name


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_fragment_and_its_outer_optimizer(ranks: int, tmp_path: Path) -> None:
    store, name = saved_by_two(tmp_path, exchanged)
    whole = exchanged(None)
    for rank in range(ranks):
        with as_rank(rank, (ranks,)) as mesh:
            mine = fragment(9.0, mesh)
            load(store, name, mine)
            got, present = list(mine.original_parameters.values()), [local(p) for p in mine.module.parameters()]
            buffers = momentum(mine)
        held = [list(whole.original_parameters.values()), momentum(whole)]
        weight, buffer = (values[0].chunk(ranks)[rank] for values in held)
        for now in (got, present):
            assert torch.equal(now[0], weight)
            assert torch.equal(now[1], held[0][1])
        assert torch.equal(buffers[0], buffer)
        assert torch.equal(buffers[1], held[1][1])


def test_another_model_is_refused_before_anything_is_changed() -> None:
    mine, other = fragment(1.0, None), fragment(2.0, None).saved()
    other["original_parameters"]["scale"] = torch.zeros(3)
    with pytest.raises(ConfigError, match=r"scale is \(3,\) in the checkpoint and \(2,\) here"):
        mine.load_saved(other)
    assert torch.equal(mine.original_parameters["weight"], Model(1.0, None).weight)
    other["original_parameters"].pop("scale")
    with pytest.raises(ConfigError, match="other parameters"):
        mine.load_saved(other)


def test_a_checkpoint_of_an_earlier_local_sgd_is_refused() -> None:
    net = Model(1.0, None)
    loop = LocalSGD(create_autospec(Manager), net, torch.optim.SGD(net.parameters()), 2)
    with pytest.raises(ConfigError, match="LocalSGD of an earlier torchft_x"):
        loop.load_state_dict({"exchanges": 3, "weights": dict(net.named_parameters())})


def test_a_checkpoint_of_another_algorithm_is_refused() -> None:
    """It has the settings of another outer optimizer."""
    manager, net = create_autospec(Manager), Model(1.0, None)
    manager._use_async_quorum = False
    inner, outer = torch.optim.SGD(net.parameters()), torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9)
    diloco, local_sgd = DiLoCo(manager, [net], inner, outer, 2), LocalSGD(manager, net, inner, 2)
    with pytest.raises(ConfigError, match="DiLoCo wrote this checkpoint, not LocalSGD"):
        local_sgd.load_state_dict(diloco.state_dict())
    with pytest.raises(ConfigError, match="LocalSGD wrote this checkpoint, not DiLoCo"):
        diloco.load_state_dict(local_sgd.state_dict())
