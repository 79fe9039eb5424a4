"""A member that lies, at random: the invariants hold for the others, and they are not held up for long."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim import lies
from tests.sim.config import WorldConfig
from tests.sim.lies import Liar
from tests.sim.world import World

GAPS = {False: 2.0, True: 8.0}
"""Virtual seconds between two commits of the others at most, while a member lies. If it asks for no quorum, no collective ever
waits for it. If it does, and then isn't there, each time its process group isn't made (1.5 s), it is suspected, and its address
refuses; or it is told to have a session for as long as a silence may last (2 s)."""


def longest_gap(world: World, seconds: float) -> float:
    """The longest virtual time without a commit."""
    end, last, longest, commits = world.now + seconds, world.now, 0.0, world.checker.commits
    while world.now < end:
        world.run_for(0.02)
        if world.checker.commits > commits:
            commits, last = world.checker.commits, world.now
        longest = max(longest, world.now - last)
    return longest


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_who_lies_holds_up_the_others_for_seconds_at_most(seed: int, joins: bool) -> None:
    world = World(seed, WorldConfig(groups=2, commit_vote=seed % 2 == 0, runs_on=True))
    assert world.run_while(lambda: world.checker.commits < 20, 30.0)
    liar = Liar(world, seed, world.now + 20.0, joins=joins)
    assert longest_gap(world, 20.0) < GAPS[joins]
    assert liar.told.total() > 20
    assert not joins or liar.told["join"] > 3


@pytest.mark.parametrize("faults", [False, True])
def test_all_is_well_again_after_lies(faults: bool) -> None:
    told: Counter[str] = Counter()
    for seed in range(3):
        told += lies.run(seed, faults=faults)[1].told
    assert {"hello", "join", "leave", "progress", "suspected", "paused"} <= set(told)
