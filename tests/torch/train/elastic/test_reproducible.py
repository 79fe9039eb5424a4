"""The parameters have the same bits whatever the number of groups and whoever is lost."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, leave, lighthouse, rng, same
from tests.util import scaled
from torchft_x.errors import ConfigError
from torchft_x.train.elastic.sampler import ElasticSampler

DEALING: dict[str, Any] = {"global_batch": 14, "micro_batch": 2, "policy": "strict", "reproducible": True}
DATA = torch.randn(60, 6, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 60)[:, None]
STEPS = 10


class Net(nn.Module):
    """Uses a part in some slots only, and another one in none."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.Linear(33, 5), nn.Linear(5, 3))
        self.sometimes, self.never = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return y + self.sometimes(x) if x[0, 0] > 0 else y


class Slots(Trainer):
    def __init__(self, group: int, address: str, **kwargs: Any) -> None:
        with rng:
            torch.manual_seed(7)
            net = Net()
        super().__init__(group, address, net=net, **kwargs)
        self.data = ElasticSampler(self.manager, len(DATA), **DEALING)

    def train(self, meet: threading.Barrier | None = None, *, leaves: bool = False) -> Slots:
        while self.manager.current_step() < STEPS:
            self.optimizer.zero_grad()
            for micro in self.data.step():
                loss = self.model(DATA[micro.indices]).square().mean()
                if meet is not None and self.manager.current_step() == 4:
                    meet.wait(scaled(20))
                    meet = None
                    if leaves:
                        self.manager.shutdown(finished=False)
                        return self
                loss.backward()
            self.optimizer.step()
        return self


@pytest.fixture(scope="module")
def alone() -> dict[str, torch.Tensor]:
    """The parameters of a single group."""
    with lighthouse(1) as address:
        trainer = Slots(0, address).train()
        leave(trainer)
    return trainer.net.state_dict()


EACH = 0  # MiB of a bucket: each parameter has its own, and is sent when its gradient comes
ONE = None  # all parameters are in one bucket


@pytest.mark.parametrize(("groups", "cap"), [(2, ONE), (3, EACH), (9, EACH)])
def test_any_number_of_groups(groups: int, cap: float | None, alone: dict[str, torch.Tensor]) -> None:
    """With nine groups and seven slots seven groups have one slot, and two contribute nothing."""
    with lighthouse(groups) as address:
        trainers = run_threads(groups, lambda g: Slots(g, address, min_replica_size=groups, bucket_cap_mb=cap))
        run_threads(groups, lambda g: trainers[g].train())
        assert all(same(t.net.state_dict(), alone) for t in trainers)
        leave(*trainers)


@pytest.mark.parametrize(("groups", "leaver", "cap"), [(3, 0, ONE), (3, 2, EACH), (7, 3, EACH)])
def test_a_group_is_lost_inside_a_step(
    groups: int, leaver: int, cap: float | None, alone: dict[str, torch.Tensor]
) -> None:
    meet = threading.Barrier(groups)
    with lighthouse(groups - 1) as address:
        trainers = run_threads(groups, lambda g: Slots(g, address, min_replica_size=groups - 1, bucket_cap_mb=cap))
        run_threads(groups, lambda g: trainers[g].train(meet, leaves=g == leaver))
        stayed = [t for t in trainers if t.group != leaver]
        assert all(same(t.net.state_dict(), alone) for t in stayed)
        leave(*stayed)


def test_an_ordinary_run_has_other_bits(alone: dict[str, torch.Tensor]) -> None:
    """Else the tests above show nothing."""
    with pytest.MonkeyPatch.context() as patch, lighthouse(3) as address:
        patch.setitem(DEALING, "reproducible", False)
        trainers = run_threads(3, lambda g: Slots(g, address, min_replica_size=3))
        run_threads(3, lambda g: trainers[g].train())
        assert not same(trainers[0].net.state_dict(), alone)
        leave(*trainers)


def test_gradients_that_are_kept_are_zeroed_by_the_script() -> None:
    """zero_grad(set_to_none=False) leaves memory of ours in ``p.grad``; unused parameters then decay, as everywhere."""
    found = []
    for groups in (1, 2):
        with lighthouse(groups) as address:
            trainers = run_threads(groups, lambda g: Slots(g, address, min_replica_size=groups))  # noqa: B023
            for trainer in trainers:
                zero = trainer.optimizer.zero_grad
                trainer.optimizer.zero_grad = lambda zero=zero: zero(set_to_none=False)  # type: ignore[method-assign]
            run_threads(groups, lambda g: trainers[g].train())  # noqa: B023
            leave(*trainers)
        found.append(trainers[0].net.state_dict())
    assert same(*found)


def test_a_seed_waits_for_no_lock_of_torch(address: str) -> None:
    """A loader's worker that is forked while another group's thread holds that of `torch.manual_seed` waited forever."""
    trainer = Slots(0, address)
    trainer.optimizer.zero_grad()
    with torch.mtia._initialization_lock:
        drawn = run_threads(1, lambda g: [torch.rand(1) for _ in trainer.data.step()], timeout=20)
    assert len({float(x) for x in drawn[0]}) == 7
    trainer.manager.shutdown(finished=False)


def test_a_graph_of_the_gradient_is_refused(address: str) -> None:
    trainer = Slots(0, address)
    trainer.optimizer.zero_grad()
    for micro in trainer.data.step():
        trainer.model(DATA[micro.indices]).square().mean().backward(create_graph=True)
    assert not trainer.optimizer.step()
    assert "create_graph=True is not possible" in str(trainer.manager.errored())
    trainer.net.zero_grad()  # the graph holds the parameters
    leave(trainer)


def test_what_cannot_be_reproduced_is_refused(address: str) -> None:
    trainer = Trainer(0, address)
    with pytest.raises(ConfigError, match="needs the policy 'strict'"):
        ElasticSampler(trainer.manager, 10, **{**DEALING, "policy": "constant"})
    leave(trainer)


def test_running_statistics_are_refused(address: str) -> None:
    trainer = Trainer(0, address, net=nn.BatchNorm1d(6))
    data = ElasticSampler(trainer.manager, len(DATA), **DEALING)
    trainer.optimizer.zero_grad()
    micro = next(data.step())
    with pytest.raises(ConfigError, match="a norm without running statistics"):
        trainer.model(DATA[micro.indices])
    trainer.manager.report_error(InterruptedError())
    leave(trainer)
