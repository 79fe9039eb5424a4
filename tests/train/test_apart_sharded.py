"""DiLoCo and LocalSGD with models that FSDP2 shards within each group: two groups of two ranks, real processes."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import pytest
import torch

from tests.train.apart import LR, MOMENTUM
from tests.train.jobs import HOST, lighthouse
from tests.train.ranks import Groups, Place
from tests.train.sharded import Tensors, assert_near, batch, full, loss_of, model, shard
from tests.util import scaled
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.train.ddp.sharded_state import ShardedState
from torchft_x.train.ddp.shards import local
from torchft_x.train.local.diloco import DiLoCo
from torchft_x.train.local.local_sgd import LocalSGD
from torchft_x.train.manager import Manager

RANKS = 2


class Apart:
    """One rank."""

    def __init__(self, place: Place, algorithm: str, sync_every: int, **kwargs: Any) -> None:
        self.place = place
        self.net = shard(model(place.kwargs.get("seed", place.group)))
        self.adamw = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        state = ShardedState(self.net, self.adamw)
        self.manager = Manager(
            pg=ProcessGroupGloo(20.0, host=HOST), load_state_dict=state.load_state_dict, state_dict=state.state_dict,
            min_replica_size=1, use_async_quorum=False, timeout=scaled(20), quorum_timeout=scaled(20),
            connect_timeout=scaled(20), rank=place.rank, world_size=place.ranks, store_addr=HOST, store_port=place.port,
            lighthouse_addr=place.lighthouse, replica_id=f"group_{place.group}", hostname=HOST,
        )  # fmt: skip
        kwargs["quorum_timeout"] = scaled(20)
        self.loop: LocalSGD | DiLoCo
        if algorithm == "local_sgd":
            self.loop = LocalSGD(self.manager, self.net, self.adamw, sync_every, **kwargs)
        else:
            outer = torch.optim.SGD(self.net.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True)
            self.loop = DiLoCo(self.manager, [self.net], self.adamw, outer, sync_every, **kwargs)
        self.history: dict[int, Tensors] = {}  # this rank's shards of what the groups have in common, by exchange
        self.steps = 0

    def step(self) -> None:
        before = self.loop.exchanges
        self.adamw.zero_grad()
        loss_of(self.net, batch(self.place.group, self.place.rank, self.steps)).backward()
        self.adamw.step()
        self.steps += 1
        if self.loop.exchanges != before:
            self.note()

    def note(self) -> None:
        shards = {name: local(p) for name, p in self.net.named_parameters()}
        if isinstance(self.loop, DiLoCo):
            shards = self.loop.global_parameters[0]
        self.history[self.loop.exchanges] = {name: t.clone() for name, t in shards.items()}
        if self.place.steps is not None:
            self.place.steps.value = self.loop.exchanges


def some_steps(place: Place) -> dict[int, Tensors]:
    apart = Apart(place, place.kwargs["algorithm"], 3, **place.kwargs["loop"])
    with apart.loop:
        for _ in range(10):
            apart.step()
    apart.manager.shutdown()
    return apart.history


def life(place: Place) -> dict[int, Tensors]:
    """Until the others have gone so many times, or for so many exchanges of one's own."""
    apart = Apart(place, "diloco", 3, fragment_sync_delay=1)
    losses, before = place.kwargs.get("losses", 0), 0
    with apart.loop:
        begin = apart.loop.exchanges
        apart.note()
        while losses > 0 or apart.loop.exchanges < begin + place.kwargs.get("exchanges", 0):
            apart.step()
            now = apart.manager.num_participants()
            losses, before = losses - (now < before), now
            time.sleep(0.005)
    apart.manager.shutdown()
    return apart.history


def reference(groups: int, steps: int, sync_every: int, algorithm: str, delay: int) -> list[Tensors]:
    nets = [model(0) for _ in range(groups)]
    adams = [torch.optim.AdamW(n.parameters(), lr=0.05) for n in nets]
    common = {n: p.detach().clone() for n, p in nets[0].named_parameters()}
    momentum = {n: torch.zeros_like(t) for n, t in common.items()}
    average: Tensors = {}
    out = []
    for t in range(1, steps + 1):
        for g, net in enumerate(nets):
            adams[g].zero_grad()
            for r in range(RANKS):
                (loss_of(net, batch(g, r, t - 1)) / RANKS).backward()
            adams[g].step()
        if t % sync_every == (sync_every - delay) % sync_every:
            for name in common:
                average[name] = sum(dict(n.named_parameters())[name].detach() for n in nets) / groups
        if t % sync_every:
            continue
        for name, value in common.items():
            if algorithm == "local_sgd":
                common[name] = average[name]
            else:
                delta = value - average[name]
                momentum[name] = MOMENTUM * momentum[name] + delta
                common[name] = value - LR * (delta + MOMENTUM * momentum[name])
            for net in nets:
                dict(net.named_parameters())[name].data.copy_(common[name])
        out.append({n: t.clone() for n, t in common.items()})
    return out


@pytest.mark.parametrize(
    ("algorithm", "loop"),
    [("local_sgd", {}), ("diloco", {"fragment_sync_delay": 1, "bucket_cap_mb": 0.0001})],
    ids=["local_sgd", "diloco"],
)
def test_sharded_groups_train_like_one_process(algorithm: str, loop: dict[str, Any]) -> None:
    with lighthouse(2) as address, Groups(address, RANKS) as groups:
        found = groups.run(2, some_steps, algorithm=algorithm, loop=loop)
    want = reference(2, 10, 3, algorithm, loop.get("fragment_sync_delay", 0))
    for g, k in product(range(2), range(1, 4)):
        for rank in range(RANKS):
            for name, value in found[g][rank][k].items():
                assert torch.equal(value, found[0][rank][k][name])
        assert_near(full([found[g][rank][k] for rank in range(RANKS)], model(0)), want[k - 1], (g, k))


@pytest.mark.slow
def test_a_group_dies_and_returns() -> None:
    with lighthouse(1) as address, Groups(address, RANKS) as groups:
        survivor = groups.start(0, life, seed=0, losses=2)
        victim = groups.start(1, life, seed=5, exchanges=100_000)
        survivor.wait_step(3)
        victim.wait_step(3)
        victim.kill()
        dead = survivor.steps.value
        survivor.wait_step(dead + 3)
        back = groups.start(1, life, seed=9, exchanges=4).results()
        stayed = survivor.results()
    for rank in range(RANKS):
        # From the start on, or from where it met the other one, which may have begun alone.
        assert sorted(stayed[rank]) == list(range(min(stayed[rank]), max(stayed[rank]) + 1))
        first = min(back[rank])
        assert first > dead
        assert sorted(back[rank]) == list(range(first, first + 5))
        for k, found in back[rank].items():
            for name, value in found.items():
                assert torch.equal(value, stayed[rank][k][name]), (rank, k, name)
