"""FSDP's CPUOffloadPolicy: shards, gradients and the optimizer's state on the host, computing on the device.

Without a device the policy is refused (pinned memory) or changes nothing, so here DTensors stand for what it makes:
shards on the host over a mesh of another device. With a GPU the last test runs the policy itself::

    pytest -v -rs -m gpu tests/torch/train/test_offload.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor, Shard

from tests.process.train.test_hsdp_faults import same_where_shared, train
from tests.torch.train.fakes import FakeManager, gloo_groups
from tests.torch.train.jobs import lighthouse
from tests.torch.train.ranks import Groups, RankSpec
from tests.torch.train.sharded import Net, Trainer, batch, loss_of, shard
from torchft_x.comm import ProcessGroupDummy
from torchft_x.comm.wrappers.process_groups import FakeProcessGroupWrapper
from torchft_x.errors import ConfigError
from torchft_x.train.ddp.hsdp import HybridShardedDataParallel
from torchft_x.train.ddp.sharded_state import ShardedState
from torchft_x.train.ddp.shards import like, local, offloaded
from torchft_x.train.manager import Manager
from torchft_x.transfer.format.flatten import is_dtensor


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def on_the_host(net: nn.Module) -> nn.Module:
    """Its parameters as FSDP with the policy holds them: shards on the CPU, over a mesh of GPUs."""
    device = DeviceMesh("cuda", torch.arange(1), _init_backend=False)
    cpu = DeviceMesh("cpu", torch.arange(1))
    for m in net.modules():
        for name, p in list(m.named_parameters(recurse=False)):
            _, form = DTensor.from_local(p.detach(), cpu, [Shard(0)]).__tensor_flatten__()
            parts = {"_local_tensor": p.detach().clone(), "device_mesh": device}
            m.register_parameter(name, nn.Parameter(DTensor.__tensor_unflatten__(parts, form, p.shape, p.stride())))
    assert all(offloaded(p) for p in net.parameters())
    return net


def averaged(
    net: nn.Module, value: float, manager: FakeManager | None = None
) -> tuple[HybridShardedDataParallel, FakeManager]:
    manager = manager or FakeManager(gloo_groups(1)[0], 1)
    wrapped = HybridShardedDataParallel(manager, net)  # type: ignore[arg-type]
    for p in net.parameters():
        p.grad = like(p, torch.full_like(local(p), value))
    wrapped.reduce_gradients()
    return wrapped, manager


def test_averages_stay_on_the_host_and_are_what_the_optimizer_steps_with() -> None:
    net = on_the_host(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    before = [local(p).clone() for p in net.parameters()]
    # Two groups take part, and the other one's gradients are zeros: the mean is the half.
    _, manager = averaged(net, 0.5, FakeManager(gloo_groups(1)[0], 2))
    assert manager.errors == []
    for p in net.parameters():
        assert is_dtensor(p.grad)
        assert p.grad.device_mesh == p.device_mesh
        assert torch.equal(local(p.grad), torch.full_like(local(p), 0.25))
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    for p, was in zip(net.parameters(), before, strict=True):
        assert torch.allclose(local(p), was - 0.25)


def test_what_a_clipping_changes_is_noticed_and_a_redo_begins_with_the_local_gradients() -> None:
    net = on_the_host(nn.Linear(3, 4))
    wrapped, _ = averaged(net, 3.0)
    assert wrapped._reducer.intact()
    assert wrapped._reducer.reduce_again()
    assert torch.equal(local(net.weight.grad), torch.full((4, 3), 3.0))
    with torch.no_grad():
        local(net.weight.grad).mul_(0.5)
    assert not wrapped._reducer.intact()  # else the redo would undo the clipping


@pytest.mark.parametrize("stepped", [True, False])
def test_a_heal_lands_in_the_shards_on_the_host(stepped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[bool] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waited.append(True))  # there is no device to wait for
    nets = [on_the_host(nn.Linear(3, 4)) for _ in range(2)]
    optims = [torch.optim.AdamW(n.parameters(), lr=0.1, foreach=False) for n in nets]
    for n, o in zip(nets, optims, strict=True) if stepped else [(nets[0], optims[0])]:
        averaged(n, 1.0)
        o.step()
    source, mine = (ShardedState(n, o) for n, o in zip(nets, optims, strict=True))
    pointers = [local(p).data_ptr() for p in nets[1].parameters()]
    mine.load_state_dict(source.state_dict())
    assert waited  # for what the last forward still copies to the device
    assert [local(p).data_ptr() for p in nets[1].parameters()] == pointers
    for p, q in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
        assert torch.equal(local(p), local(q))
        for key, value in optims[0].state[q].items():
            assert torch.equal(local(optims[1].state[p][key]), local(value)), key
        assert offloaded(optims[1].state[p]["exp_avg"])


class OfGpus(ProcessGroupDummy):
    takes = "cuda"


@pytest.mark.parametrize("pg", [OfGpus(), FakeProcessGroupWrapper(OfGpus())])
def test_a_process_group_that_takes_no_host_memory_is_refused_at_the_start(pg: Any, address: str) -> None:
    manager = Manager(pg, None, None, 1, rank=0, world_size=1, lighthouse_addr=address, replica_id="a")
    try:
        with pytest.raises(ConfigError, match=r"the gradients are on cpu, and \w+ takes tensors on cuda only"):
            HybridShardedDataParallel(manager, on_the_host(nn.Linear(2, 2)))
    finally:
        manager.shutdown(wait=False)


def with_policy(net: Net) -> None:
    mesh = DeviceMesh.from_group(dist.new_group(backend="nccl"), "cuda")
    shard(net, mesh, offload_policy=CPUOffloadPolicy())


def on_a_gpu(spec: RankSpec) -> Any:
    torch.cuda.set_device(0)
    t = Trainer(spec, seed=spec.group, cut=with_policy)
    t.net.seen = t.net.seen.cuda()

    def backward(step: int) -> None:
        assert all(offloaded(p) and local(p).is_pinned() for p in t.net.parameters())
        loss_of(t.model, batch(spec.group, spec.rank, step).cuda()).backward()

    t.backward = backward  # type: ignore[method-assign]
    return train(t, together=3)


@pytest.mark.gpu(1)
def test_a_late_group_that_offloads_copies_the_shards_on_the_host() -> None:
    with lighthouse(1) as address, Groups(address, 1) as groups:
        first = groups.start(0, on_a_gpu)
        first.wait_step(2)
        late = groups.start(1, on_a_gpu)
        results = [first.results(), late.results()]
        assert same_where_shared([result * 2 for result in results]) >= 3  # as if each group had two ranks
