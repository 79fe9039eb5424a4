"""Groups of one and of three ranks train together: uneven shards, weights by tokens, an island that dies and returns."""

from __future__ import annotations

import time

from tests.torch.train.jobs import lighthouse
from tests.torch.train.local.test_islands import (
    Islander,
)
from tests.torch.train.ranks import Groups, Place
from tests.torch.train.sharded import Tensors


def life(place: Place) -> dict[int, Tensors]:
    me = Islander(place)
    with me.loop:
        me.note()
        until = me.loop.exchanges + 4 if place.kwargs["back"] else 100_000
        while me.loop.exchanges < until:
            me.step()
            time.sleep(0.01)
    return me.end()


def test_an_island_dies_and_another_of_another_size_takes_its_place() -> None:
    with lighthouse(1) as address, Groups(address) as groups:
        stays = groups.start(0, life, 2, back=False)
        dies = groups.start(1, life, 3, back=False)
        stays.wait_step(3)
        dies.wait_step(3)
        dies.kill()
        dead = stays.steps.value
        stays.wait_step(dead + 2)
        back = groups.start(1, life, 1, back=True).results()
    (history,) = back
    first = min(history)
    assert first > dead
    assert sorted(history) == list(range(first, first + 5))
