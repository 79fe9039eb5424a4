"""DiLoCo and LocalSGD with models that FSDP2 shards within each group: two groups of two ranks, real processes."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import pytest
import torch

from tests.torch.train.apart import LocalTrainer, Weights, equal, reference
from tests.torch.train.jobs import lighthouse
from tests.torch.train.ranks import Groups, RankSpec
from tests.torch.train.sharded import assert_near, batch, full, loss_of, model, shard
from torchft_x.train.ddp.sharded_state import ShardedState

RANKS = 2
NAMES = [name for name, _ in model(0).named_parameters()]


class Rank(LocalTrainer):
    def __init__(self, spec: RankSpec, algorithm: str, **kwargs: Any) -> None:
        self.spec = spec
        where = {"rank": spec.rank, "world_size": spec.ranks, "store_port": spec.port}
        net = shard(model(spec.kwargs.get("seed", spec.group)))
        super().__init__(
            spec.group, spec.lighthouse, algorithm=algorithm, sync_every=3, net=net, manager=where, **kwargs
        )

    @cached_property
    def state(self) -> ShardedState:
        return ShardedState(self.net, self.inner)

    def save(self) -> dict[str, Any]:
        return self.state.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        self.state.load_state_dict(state)

    def loss(self) -> torch.Tensor:
        return loss_of(self.net, batch(self.group, self.spec.rank, self.steps))

    def note(self) -> None:
        super().note()
        self.spec.steps.value = self.loop.exchanges


def some_steps(spec: RankSpec) -> dict[int, Weights]:
    rank = Rank(spec, spec.kwargs["algorithm"], **spec.kwargs["loop"]).run(10)
    rank.manager.shutdown()
    return rank.history


@pytest.mark.parametrize(
    ("algorithm", "loop"),
    [("local_sgd", {}), ("diloco", {"fragment_sync_delay": 1, "bucket_cap_mb": 0.0001})],
    ids=["local_sgd", "diloco"],
)
def test_sharded_groups_train_like_one_process(algorithm: str, loop: dict[str, Any]) -> None:
    with lighthouse(2) as address, Groups(address, RANKS) as groups:
        found = groups.run(2, some_steps, algorithm=algorithm, loop=loop)
    want, _ = reference(
        2, 10, sync_every=3, algorithm=algorithm, delay=loop.get("fragment_sync_delay", 0), make=model,
        loss=lambda net, g, t: sum(loss_of(net, batch(g, r, t)) for r in range(RANKS)) / RANKS,  # type: ignore[return-value]
    )  # fmt: skip
    for k in (1, 2, 3):
        assert all(equal(found[0][rank][k], found[1][rank][k]) for rank in range(RANKS))
        shards = [dict(zip(NAMES, found[0][rank][k], strict=True)) for rank in range(RANKS)]
        assert_near(full(shards, model(0)), dict(zip(NAMES, want[k - 1], strict=True)), k)


def attempt(spec: RankSpec) -> dict[int, Weights]:
    """Until the others have gone so many times, or for so many exchanges of one's own."""
    apart = Rank(spec, "diloco", fragment_sync_delay=1)
    losses, before = spec.kwargs.get("losses", 0), 0
    with apart.loop:
        begin = apart.loop.exchanges
        apart.note()
        while losses > 0 or apart.loop.exchanges < begin + spec.kwargs.get("exchanges", 0):
            apart.step()
            now = apart.manager.num_participants()
            losses, before = losses - (now < before), now
            time.sleep(0.005)
    apart.manager.shutdown()
    return apart.history


def test_a_group_dies_and_returns() -> None:
    with lighthouse(1) as address, Groups(address, RANKS) as groups:
        survivor = groups.start(0, attempt, seed=0, losses=2)
        victim = groups.start(1, attempt, seed=5, exchanges=100_000)
        survivor.wait_step(3)
        victim.wait_step(3)
        victim.kill()
        dead = survivor.steps.value
        survivor.wait_step(dead + 3)
        back = groups.start(1, attempt, seed=9, exchanges=4).results()
        stayed = survivor.results()
    for rank in range(RANKS):
        # From the start on, or from where it met the other one, which may have begun alone.
        assert sorted(stayed[rank]) == list(range(min(stayed[rank]), max(stayed[rank]) + 1))
        first = min(back[rank])
        assert first > dead
        assert sorted(back[rank]) == list(range(first, first + 5))
        assert all(equal(found, stayed[rank][k]) for k, found in back[rank].items())
