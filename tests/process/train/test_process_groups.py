"""A Manager whose process group lives in a child process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.torch.comm.subprocess.test_group import children, helper
from tests.torch.train.jobs import HOST, lighthouse
from tests.torch.train.ranks import Groups, RankSpec
from tests.util import scaled
from torchft_x.comm import ProcessGroupBabyGloo
from torchft_x.train.ddp.wrapper import DistributedDataParallel
from torchft_x.train.optim import OptimizerWrapper

STEPS = 6


@pytest.fixture
def groups() -> Iterator[Groups]:
    with lighthouse(2) as address, Groups(address, 1) as made:
        yield made


def train(spec: RankSpec) -> Any:
    """Group 1 begins with other weights, and in its fourth step loses the child its process group lives in."""
    pg = ProcessGroupBabyGloo(scaled(20), host=HOST)
    torch.manual_seed(spec.group)
    net = torch.nn.Linear(4, 1)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)

    def load(state: dict[str, Any]) -> None:
        net.load_state_dict(state["net"])

    save = lambda: {"net": net.state_dict()}  # noqa: E731
    manager = spec.manager(load, save, pg=pg, min_replica_size=2)
    model = DistributedDataParallel(manager, net)
    optimizer = OptimizerWrapper(manager, sgd)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(spec.group))
    killed = spec.group == 0
    while manager.current_step() < STEPS:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if manager.current_step() == 3 and not killed:
            killed = True
            for pid in children(helper()):
                os.kill(pid, signal.SIGKILL)
        loss.backward()
        optimizer.step()
    manager.shutdown()
    return [p.detach().clone() for p in net.parameters()]


def test_training_outlives_the_child_of_its_process_group(groups: Groups) -> None:
    (first,), (second,) = groups.run(2, train)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
