"""Groups that train apart commit each sample once, as the outer optimizer counts from the exchanged values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.torch.train.elastic.ledger import Count, Ledger
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import HOST, lighthouse, manager_of
from tests.util import scaled, wait_for
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.errors import ConfigError
from torchft_x.net import parse_address
from torchft_x.rpc.status_query import lighthouse_overview
from torchft_x.train.elastic.sampler import ElasticSampler
from torchft_x.train.local.diloco import DiLoCo
from torchft_x.train.local.local_sgd import LocalSGD

LENGTH, EPOCHS, EVERY = 50, 2, 4


class Outer(Count):
    """Adds one to the count of each sample in the pseudo-gradient. All must have the same weight."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                found = p.grad[p.grad != 0]
                torch.testing.assert_close(found, torch.full_like(found, found[0].item()))
                p.add_((p.grad != 0).double())


class Inner(torch.optim.SGD):
    """Adds one to the count of each sample in the gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.add_((p.grad > 0).double())


class LocalTrainer:
    def __init__(self, group: int, address: str, loop: dict[str, Any] | None = None, **dealing: Any) -> None:
        self.group = group
        self.net = Ledger(EPOCHS + 3, LENGTH)
        self.manager = manager_of(group, address, ProcessGroupGloo(scaled(20), host=HOST), use_async_quorum=False)
        self.data = ElasticSampler(self.manager, LENGTH, **({"policy": "shrink", "micro_batch": 2} | dealing))
        self.inner = Inner(self.net.parameters(), lr=1.0)
        self.loop = DiLoCo(self.manager, [self.net], self.inner, Outer(self.net.parameters()), EVERY, **(loop or {}))
        self.steps = 0

    def train(self, stop: int = 10**9, wait: Callable[[], object] | None = None) -> LocalTrainer:
        """Train all epochs, or leave before inner step `stop`. Before step 9 wait until a condition holds."""
        with self.loop:
            while self.data.epoch < EPOCHS and self.steps < stop:
                if self.steps == 9 and wait is not None:
                    wait_for(wait, 30.0, "the newcomer")
                self.inner.zero_grad()
                for micro in self.data.step():
                    self.net([(s.epoch, s.index) for s in micro.samples]).backward()
                self.steps += 1
                self.inner.step()
        self.manager.shutdown(finished=stop > 10**8)
        return self

    def check(self) -> None:
        counts = self.loop.global_parameters[0]["count"]
        assert torch.all(counts[:EPOCHS] == 1), counts
        assert counts.max() == 1


def test_each_sample_once() -> None:
    with lighthouse(3) as address:
        trainers = run_threads(3, lambda g: LocalTrainer(g, address))
        for trainer in run_threads(3, lambda g: trainers[g].train()):
            trainer.check()


@pytest.mark.parametrize("leaves", [0, 2])
def test_what_a_lost_group_had_trained_is_trained_by_others(leaves: int) -> None:
    """It leaves between two exchanges; another attempt joins later."""
    gone = threading.Event()

    def newcomer_asks() -> bool:
        """Nobody waits for a newcomer before it asks; they would finish without it."""
        return any(
            g["group"].endswith(str(leaves)) and g["does"] == "waits"
            for g in lighthouse_overview(parse_address(address))["groups"]
        )

    def body(i: int) -> LocalTrainer:
        if i == 3:
            assert gone.wait(scaled(30))
            return LocalTrainer(leaves, address).train()
        if i == leaves:
            trainers[i].train(6)
            gone.set()
        else:
            trainers[i].train(wait=newcomer_asks)
        return trainers[i]

    with lighthouse(2) as address:
        trainers = run_threads(3, lambda g: LocalTrainer(g, address))
        for i, trainer in enumerate(run_threads(4, body)):
            if i != leaves:
                trainer.check()


@pytest.mark.parametrize(
    ("dealing", "loop", "words"),
    [
        ({"policy": "constant", "global_batch": 4}, {}, "the policy 'shrink'"),
        ({"tail": "short"}, {}, "not the tail 'short'"),
        ({}, {"fragment_sync_delay": 1}, "does not work with fragment_sync_delay"),
    ],
)
def test_what_does_not_suit_is_refused(dealing: dict[str, Any], loop: dict[str, Any], words: str, address: str) -> None:
    trainer = LocalTrainer(0, address, loop, **dealing)
    with pytest.raises(ConfigError, match=words), trainer.loop:
        pass
    trainer.manager.shutdown()


def test_local_sgd_with_asynchronous_quorums_is_refused(address: str) -> None:
    net = Ledger(1, LENGTH)
    manager = manager_of(0, address, ProcessGroupGloo(scaled(20), host=HOST))
    ElasticSampler(manager, LENGTH, policy="shrink", micro_batch=2)
    with pytest.raises(ConfigError, match="use_async_quorum=True"), LocalSGD(manager, net, Inner(net.parameters()), 2):
        pass
    manager.shutdown()
