"""FSDP2's hybrid sharding on a managed mesh: groups of two ranks, as real processes, against one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.torch.comm.test_base import torch_world  # noqa: F401
from tests.torch.comm.wrappers.test_process_groups import Manager
from tests.torch.train.jobs import lighthouse
from tests.torch.train.ranks import Groups, RankSpec
from tests.torch.train.sharded import assert_near, assert_same, batch, full, loss_of, model, reference, shard
from torchft_x import ft_init_device_mesh
from torchft_x.comm.wrappers.process_groups import ManagedProcessGroup
from torchft_x.errors import ConfigError
from torchft_x.train.ddp.sharded_state import ShardedState
from torchft_x.train.ddp.shards import local
from torchft_x.train.optim import OptimizerWrapper

RANKS = 2
STEPS = 3


@pytest.fixture
def groups() -> Iterator[Groups]:
    with lighthouse(2) as address, Groups(address, RANKS) as made:
        yield made


def hybrid(spec: RankSpec) -> Any:
    manager = spec.manager(lambda given: state.load_state_dict(given), lambda: state.state_dict(), min_replica_size=2)
    mesh = init((2, spec.ranks), ("dp_replicate", "dp_shard"), 0, manager)
    net = shard(model(0), mesh["dp_replicate", "dp_shard"])
    adamw = torch.optim.AdamW(net.parameters(), lr=0.05)
    state = ShardedState(net, adamw)
    optimizer = OptimizerWrapper(manager, adamw)
    history = {}
    while manager.current_step() < STEPS:
        optimizer.zero_grad()
        step = manager.current_step()
        loss_of(net, batch(spec.group, spec.rank, step), extra=True).backward()
        optimizer.step()
        if optimizer.committed:
            history[manager.current_step()] = {n: local(p).clone() for n, p in net.named_parameters()}
    replicas = mesh.get_group("dp_replicate")
    assert isinstance(replicas, ManagedProcessGroup)
    assert replicas.size() == 2, "the live number of groups"
    assert mesh["dp_shard"].size() == spec.ranks
    manager.shutdown()
    return history


def test_groups_on_a_managed_mesh_train_like_one_process(groups: Groups) -> None:
    found = groups.run(2, hybrid)
    want = reference(2, RANKS, STEPS, extra=lambda group, rank, step: True)
    assert_same(found)
    for step, expected in enumerate(want, start=1):
        assert_near(full([found[0][rank][step] for rank in range(RANKS)], model(0)), expected, step)


def alone() -> Manager:
    """Return a manager with no others."""
    manager = Manager()
    manager._pg.configure("", "a", 0, 1)
    return manager


def init(shape: tuple[int, ...], names: tuple[str, ...], replicate_dim: int, manager: Any = None) -> Any:
    return ft_init_device_mesh(
        device_type="cpu", mesh_shape=shape, mesh_dim_names=names, replicate_dim=replicate_dim, manager=manager or alone()
    )  # fmt: skip


def test_dimensions(torch_world: None) -> None:
    one = init((4,), ("dp",), 0)
    assert isinstance(one.get_group("dp"), ManagedProcessGroup)
    three = init((1, 7, 1), ("pp", "dp", "tp"), 1)
    assert three.shape == (1, 1, 1)
    assert isinstance(three.get_group("dp"), ManagedProcessGroup)
    assert not isinstance(three.get_group("tp"), ManagedProcessGroup)
    t = torch.ones(3)
    dist.all_reduce(t, group=three.get_group("dp"))
    assert torch.equal(t, torch.ones(3))


def test_shapes_that_do_not_fit(torch_world: None) -> None:
    with pytest.raises(ConfigError, match=r"has 2 ranks, this replica group 1"):
        init((3, 2), ("dp", "fsdp"), 0)
    with pytest.raises(ConfigError, match="equally long"):
        init((3,), ("dp", "fsdp"), 0)
    with pytest.raises(ConfigError, match="replicate_dim=2"):
        init((3, 1), ("dp", "fsdp"), 2)


def test_without_a_default_group() -> None:
    with pytest.raises(ConfigError, match="init_process_group"):
        init((1,), ("dp",), 0)
