"""DiLoCo and LocalSGD with models that FSDP2 shards within each group: two groups of two ranks, real processes."""

from __future__ import annotations

import time

from tests.torch.train.apart import Weights, equal
from tests.torch.train.jobs import lighthouse
from tests.torch.train.ranks import Groups, Place
from tests.torch.train.test_apart_sharded import (
    RANKS,
    Rank,
)


def life(place: Place) -> dict[int, Weights]:
    """Until the others have gone so many times, or for so many exchanges of one's own."""
    apart = Rank(place, "diloco", fragment_sync_delay=1)
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
        assert all(equal(found, stayed[rank][k]) for k, found in back[rank].items())
