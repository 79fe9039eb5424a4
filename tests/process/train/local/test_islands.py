"""Groups of one and of three ranks train together: uneven shards, weights by tokens, an island that dies and returns."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.torch.train.apart import LR, MOMENTUM, reference
from tests.torch.train.elastic.ledger import Ledger
from tests.torch.train.elastic.test_apart import EPOCHS, LENGTH, Inner, Outer
from tests.torch.train.jobs import lighthouse
from tests.torch.train.ranks import Groups, RankSpec
from tests.torch.train.sharded import Tensors, assert_near, batch, loss_of, model, shard
from tests.util import scaled
from torchft_x.errors import ConfigError, StepError
from torchft_x.train.elastic.sampler import ElasticSampler
from torchft_x.train.local.diloco import DiLoCo
from torchft_x.train.local.islands import Follower, Island
from torchft_x.train.manager import Manager
from torchft_x.transfer.format.flatten import is_dtensor

SYNC = 3


class Islander:
    def __init__(self, spec: RankSpec, **kwargs: Any) -> None:
        self.spec = spec
        self.net = shard(model(spec.group))
        self.inner = torch.optim.AdamW(self.net.parameters(), lr=0.02)
        self.island = Island(self.net)
        self.manager: Manager | None = None
        self.loop: DiLoCo | Follower
        if not self.island.leads:
            self.loop = self.island.follow(self.inner)
        else:
            self.manager = spec.manager(use_async_quorum=False, rank=0, world_size=1)
            whole = self.island.whole
            assert whole is not None
            outer = torch.optim.SGD(whole.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True)
            self.loop = DiLoCo(
                self.manager, [whole], self.inner, outer, SYNC, island=self.island, weight=lambda: float(spec.ranks),
                quorum_timeout=scaled(20), **kwargs,
            )  # fmt: skip
        self.steps = 0
        self.history: dict[int, Tensors] = {}  # by exchange

    def step(self) -> None:
        before = self.loop.exchanges
        self.inner.zero_grad()
        loss_of(self.net, batch(self.spec.group, self.spec.rank, self.steps)).backward()
        self.inner.step()
        self.steps += 1
        if self.loop.exchanges != before:
            self.note()

    def note(self) -> None:
        self.history[self.loop.exchanges] = {
            n: (p.full_tensor() if is_dtensor(p) else p).detach().clone() for n, p in self.net.named_parameters()
        }
        if self.spec.steps is not None and self.spec.rank == 0:
            self.spec.steps.value = self.loop.exchanges

    def end(self) -> dict[int, Tensors]:
        if self.manager is not None:
            self.manager.shutdown()
        return self.history


def some_steps(spec: RankSpec) -> dict[int, Tensors]:
    me = Islander(spec, **spec.kwargs)
    with me.loop:
        for _ in range(10):
            me.step()
    return me.end()


def fails(spec: RankSpec) -> str:
    me = Islander(spec)
    if me.manager is not None:
        me.manager.should_commit = lambda *_: (_ for _ in ()).throw(RuntimeError("a disk is full"))  # type: ignore[assignment]
    try:
        with me.loop:
            me.step()
    except (RuntimeError, StepError) as e:
        return str(e)
    return "went on"


def saves(spec: RankSpec) -> tuple[dict[str, Any] | None, Tensors]:
    """What rank 0 has to save after some exchanges, and the weights then."""
    me = Islander(spec)
    with me.loop:
        while me.loop.exchanges < 2:
            me.step()
        saved = me.loop.state_dict() if isinstance(me.loop, DiLoCo) else None
    return saved, me.end()[2]


def resumes(spec: RankSpec) -> Tensors:
    me = Islander(spec)
    with torch.no_grad():
        for p in me.net.parameters():
            p.add_(1.0)  # another start than that of the checkpoint
    if isinstance(me.loop, DiLoCo):
        me.loop.load_state_dict(spec.kwargs["saved"])
    with me.loop:
        me.note()
    return me.end()[2]


def misused(spec: RankSpec) -> str:
    me = Islander(spec)
    assert me.manager is not None
    try:
        DiLoCo(me.manager, [me.net], me.inner, torch.optim.SGD(me.net.parameters()), SYNC, island=me.island)
    except ConfigError as e:
        me.end()
        return str(e)
    return ""


@pytest.mark.parametrize("delay", [0, 1])
def test_unequal_islands_train_like_one_process(delay: int) -> None:
    with lighthouse(2) as address, Groups(address) as groups:
        one = groups.start(0, some_steps, 1, fragment_sync_delay=delay)
        three = groups.start(1, some_steps, 3, fragment_sync_delay=delay)
        found = [*one.results(), *three.results()]
    ranks = (1, 3)
    want, _ = reference(
        2, 10, sync_every=SYNC, delay=delay, weights=ranks, make=model,
        loss=lambda net, g, t: sum(loss_of(net, batch(g, r, t)) for r in range(ranks[g])) / ranks[g],  # type: ignore[return-value]
    )  # fmt: skip
    names = [name for name, _ in model(0).named_parameters()]
    for history in found:
        assert sorted(history) == [1, 2, 3]
        for k, weights in history.items():
            assert_near(weights, dict(zip(names, want[k - 1], strict=True)), k)
            for name, value in weights.items():
                assert torch.equal(value, found[0][k][name])


def test_an_island_goes_on_from_what_one_of_another_size_has_saved() -> None:
    with lighthouse(1) as address, Groups(address) as groups:
        (saved, weights), _ = groups.start(0, saves, 2).results()
        found = groups.start(1, resumes, 3, saved=saved).results()
    for mine in found:
        for name, value in mine.items():
            assert torch.equal(value, weights[name])


def test_the_others_hear_it_if_rank_0_fails() -> None:
    with lighthouse(1) as address, Groups(address) as groups:
        first, second = groups.start(0, fails, 2).results()
    assert first == "a disk is full"
    assert second.startswith("rank 0 of this group can't go on")


def test_a_model_that_is_not_the_islands_is_refused() -> None:
    with lighthouse(1) as address, Groups(address) as groups:
        (said,) = groups.start(0, misused, 1).results()
    assert "[island.whole]" in said


def attempt(spec: RankSpec) -> dict[int, Tensors]:
    me = Islander(spec)
    with me.loop:
        me.note()
        until = me.loop.exchanges + 4 if spec.kwargs["back"] else 100_000
        while me.loop.exchanges < until:
            me.step()
            time.sleep(0.01)
    return me.end()


def test_an_island_dies_and_another_of_another_size_replaces_it() -> None:
    with lighthouse(1) as address, Groups(address) as groups:
        stays = groups.start(0, attempt, 2, back=False)
        dies = groups.start(1, attempt, 3, back=False)
        stays.wait_step(3)
        dies.wait_step(3)
        dies.kill()
        dead = stays.steps.value
        stays.wait_step(dead + 2)
        back = groups.start(1, attempt, 1, back=True).results()
    (history,) = back
    first = min(history)
    assert first > dead
    assert sorted(history) == list(range(first, first + 5))


def trains_dealt_samples(spec: RankSpec) -> torch.Tensor:
    """Train on the samples that rank 0 is dealt. Return how often each sample of each epoch is in this rank's weights."""
    net = Ledger(EPOCHS + 3, LENGTH)
    island, inner = Island(net), Inner(net.parameters(), lr=1.0)
    manager, data = None, None
    loop: DiLoCo | Follower
    if island.whole is None:
        loop = island.follow(inner)
    else:
        manager = spec.manager(use_async_quorum=False, rank=0, world_size=1)
        data = ElasticSampler(manager, LENGTH, policy="shrink", micro_batch=2)
        loop = DiLoCo(
            manager, [island.whole], inner, Outer(island.whole.parameters()), SYNC, island=island, quorum_timeout=scaled(20)
        )  # fmt: skip
    with loop:
        while True:
            found: list[Any] = [None]
            if data is not None and data.epoch < EPOCHS:
                found = [[(s.epoch, s.index) for micro in data.step() for s in micro.samples]]
            dist.broadcast_object_list(found, 0)
            if found[0] is None:
                break
            inner.zero_grad()
            net(found[0]).backward()
            inner.step()
    if manager is not None:
        manager.shutdown()
    return net.count.detach()


def test_each_sample_once() -> None:
    with lighthouse(2) as address, Groups(address) as groups:
        one, two = (groups.start(n, trains_dealt_samples, n + 1) for n in range(2))
        for count in [*one.results(), *two.results()]:
            assert torch.all(count[:EPOCHS] == 1), count
            assert count.max() == 1
