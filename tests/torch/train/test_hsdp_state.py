"""ShardedState and what the wrapper refuses, on a mesh of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.torch.train.fakes import FakeManager
from torchft_x.errors import ConfigError, TransferError
from torchft_x.train.ddp.hsdp import HybridShardedDataParallel
from torchft_x.train.ddp.sharded_state import ShardedState
from torchft_x.train.ddp.shards import local
from torchft_x.train.ddp.wrapper import DistributedDataParallel
from torchft_x.transfer.format.flatten import flatten, is_dtensor


@pytest.fixture(scope="module", autouse=True)
def mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded(mesh: Any, seed: int = 0, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    fully_shard(net[0], mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def stepped(net: nn.Module) -> torch.optim.Optimizer:
    adamw = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.randn(5, 4)).square().mean().backward()
    adamw.step()
    adamw.zero_grad()
    return adamw


def test_what_is_handed_out_is_the_live_memory_and_can_be_sent(mesh: Any) -> None:
    net = sharded(mesh)
    state = ShardedState(net, stepped(net)).state_dict()
    flatten(state)  # raises for a leaf that can't be sent
    assert not any(is_dtensor(v) for v in state["model"].values())
    assert state["model"]["0.weight"].data_ptr() == local(net[0].weight).data_ptr()
    assert set(state["buffers"]) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_a_forward_under_way_is_not_disturbed(mesh: Any) -> None:
    net = sharded(mesh)
    state = ShardedState(net)
    before = {k: v.clone() for k, v in state.state_dict()["model"].items()}
    seen: list[dict[str, Any]] = []
    net[2].register_forward_pre_hook(lambda *_: seen.append(state.state_dict()["model"]))
    net(torch.randn(5, 4)).sum().backward()
    assert all(torch.equal(seen[0][k], before[k]) for k in before)


@pytest.mark.parametrize("optimizer_has_stepped", [True, False])
def test_everything_is_taken_over_in_place(mesh: Any, optimizer_has_stepped: bool) -> None:
    source = sharded(mesh)
    theirs = stepped(source)
    net = sharded(mesh, seed=1)
    shards = [list(n.parameters()) for n in (net, source)]  # in a forward others stand in their place
    mine = stepped(net) if optimizer_has_stepped else torch.optim.AdamW(net.parameters(), lr=0.5)
    with torch.no_grad():
        net.eval()(torch.randn(5, 4))  # a forward without backward: the root's parameters are whole now
    state = ShardedState(net, mine)
    pointers = [local(p).data_ptr() for p in shards[0]]
    came = ShardedState(source, theirs).state_dict()
    with torch.no_grad():
        net.eval()(torch.randn(5, 4))
    state.load_state_dict({**came, "model": {k: v.clone() for k, v in came["model"].items()}})
    assert [local(p).data_ptr() for p in shards[0]] == pointers
    x = torch.randn(5, 4)
    assert torch.equal(net.train()(x), source.train()(x))
    for p, q in zip(*shards, strict=True):
        assert torch.equal(local(p), local(q))
        assert is_dtensor(mine.state[p]["exp_avg"])
        for key, value in theirs.state[q].items():
            assert torch.equal(local(mine.state[p][key]), local(value)), key
    assert mine.param_groups[0]["lr"] == 0.1


def test_another_sharding_is_refused_before_anything_is_changed(mesh: Any) -> None:
    net = sharded(mesh)
    state = ShardedState(net)
    before = [local(p).clone() for p in net.parameters()]
    with pytest.raises(TransferError, match=r"0.weight is \(5, 4\) cut by Shard.* at the source and \(3, 4\) cut"):
        state.load_state_dict(ShardedState(sharded(mesh, width=5)).state_dict())
    with pytest.raises(TransferError, match="other buffers or optimizers"):
        state.load_state_dict(ShardedState(net, torch.optim.SGD(net.parameters(), 0.1)).state_dict())
    with pytest.raises(TransferError, match="not the state of a ShardedState"):
        state.load_state_dict({"model": {}})
    assert all(torch.equal(local(p), b) for p, b in zip(net.parameters(), before, strict=True))


def test_an_extra_state_needs_a_word(mesh: Any) -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> Any:
            return 1

    with pytest.raises(ConfigError, match=r"module 0 \(Counting\) has an extra state"):
        ShardedState(nn.Sequential(Counting(2, 2)))


def test_models_the_wrapper_is_not_for(mesh: Any) -> None:
    manager: Any = FakeManager(None, 1)
    with pytest.raises(ConfigError, match="call fully_shard on the model first"):
        HybridShardedDataParallel(manager, nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="parameter weight is on the meta device"):
        HybridShardedDataParallel(manager, nn.Linear(2, 2, device="meta"))
    with pytest.raises(ConfigError, match=r"0.weight is a DTensor: .*HybridShardedDataParallel"):
        DistributedDataParallel(manager, sharded(mesh))
    HybridShardedDataParallel(manager, sharded(mesh))
    assert manager.declared["sharding"].words == "6 sharded tensors"
    assert manager.declared["sharding"].parts[0].startswith("0.weight (3, 4) cut by Shard(dim=0)")
