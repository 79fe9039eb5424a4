"""A group inside torch: registered, in a device mesh, under functional collectives and torch's own DDP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh

from tests.util import scaled
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.wrappers.process_groups import ProcessGroupDummy


@pytest.fixture
def torch_world() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def group(torch_world: None) -> Iterator[ProcessGroup]:
    made = ProcessGroupGloo(scaled(10.0), host="127.0.0.1")
    made.configure("", "a", 0, 1)
    yield made
    made.shutdown()


def test_registered_group_is_known_to_torch(group: ProcessGroup) -> None:
    assert group.register("dp_replicate") is group
    assert dist.get_backend(group) == "torchft-gloo:dp_replicate"
    assert dist.get_world_size(group) == 1
    assert group.group_name
    t = torch.ones(3)
    dist.all_reduce(t, group=group)
    dist.broadcast(t, group=group, group_src=0)
    assert torch.equal(t, torch.ones(3))
    group.unregister()
    with pytest.raises(RuntimeError, match="register"):
        _ = group.group_name


def test_same_name_twice(group: ProcessGroup) -> None:
    group.register("twice")
    other = ProcessGroupDummy()
    other_gloo = ProcessGroupGloo(scaled(10.0), host="127.0.0.1")
    other_gloo.register("twice")
    other.register("twice")
    assert len({group.group_name, other.group_name, other_gloo.group_name}) == 3
    for each in (group, other, other_gloo):
        each.unregister()


def test_functional_collectives_and_device_mesh(group: ProcessGroup) -> None:
    group.register("functional")
    t = torch.arange(4.0)
    assert torch.equal(functional.all_reduce(t, "sum", group) + 0, t)
    assert torch.equal(functional.all_gather_tensor(t, 0, group) + 0, t)
    assert torch.equal(functional.reduce_scatter_tensor(t, "sum", 0, group) + 0, t)
    mesh = DeviceMesh.from_group(group, "cpu")
    assert mesh.get_group() is group
    group.unregister()


def test_torch_ddp_runs_on_it(group: ProcessGroup) -> None:
    group.register("ddp")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False), process_group=group)
    model(torch.ones(2, 3)).sum().backward()
    weight = next(model.parameters())
    assert torch.equal(weight.grad, torch.full((1, 3), 2.0))
    group.unregister()
