"""Two lighthouses in the simulated cluster, and every rule of theirs that can be left out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim import swarm
from tests.sim.faults import Fault, strike
from tests.sim.several import VARIANTS, Variant, hunt
from tests.sim.test_protocol import full
from tests.sim.test_world import all_is_well, members, said, step_of
from tests.sim.world import World


@pytest.mark.parametrize("variant", [pytest.param(v, id=v.name) for v in VARIANTS.values()])
def test_a_variant_is_found(variant: Variant) -> None:
    variant.story()
    with variant.applied(), pytest.raises(AssertionError):
        variant.story()


@pytest.mark.slow
def test_the_swarm_finds_that_there_is_no_majority() -> None:
    violation, seed = hunt(VARIANTS["no majority"])
    assert violation is not None, seed


def two(**config: Any) -> World:
    return full(standby=True, stays=0.5, **config)


def test_the_first_lighthouse_dies_for_good_and_training_goes_on_without_a_dropped_step() -> None:
    world = two()
    before = step_of(world, "g0")
    world.lighthouse.lose_host()
    world.run_for(6.0)
    assert step_of(world, "g0") > before + 50
    assert not said(world, "drops")
    strike(world, Fault(world.now, "crash", "g1"))
    world.run_for(3.0)
    assert members(world) == ["g0:1", "g1:2", "g2:1"]
    strike(world, Fault(world.now, "crash", "g0"))
    strike(world, Fault(world.now, "crash", "g2"))
    world.run_for(5.0)
    assert members(world) == ["g0:2", "g1:2", "g2:2"]
    assert world.checker.lineage == 0
    assert all_is_well(world)


def test_all_groups_are_killed_at_the_standby_and_begin_again_there() -> None:
    world = two(groups=2)
    world.lighthouse.lose_host()
    world.run_for(4.0)
    for group in ("g0", "g1"):
        strike(world, Fault(world.now, "crash", group))
    world.run_for(15.0)
    assert members(world) == ["g0:2", "g1:2"]
    assert world.checker.lineage == 1


def test_a_host_is_lost_while_the_lighthouse_lives() -> None:
    """A half goes on where its quorum was issued, without a word of the other."""
    world = two(groups=2)
    strike(world, Fault(world.now, "power", "g0", 30.0))
    world.run_for(5.0)
    assert members(world) == ["g1:1"]


def test_a_host_is_lost_with_the_lighthouse_and_half_of_the_groups_wait_and_say_why() -> None:
    world = two(groups=2)
    world.lighthouse.lose_host()
    strike(world, Fault(world.now, "power", "g0", 60.0))
    world.run_for(20.0)
    standby = world.lighthouses[1].machine
    assert standby is not None
    assert "Not enough members of quorum" in standby.undecided
    world.lighthouse.start()
    assert swarm.lost_for_good(world)


def test_who_is_cut_off_from_the_first_lighthouse_comes_back_to_the_others() -> None:
    world = two()
    world.network.block("g2", "lh")
    world.network.block("lh", "g2")
    world.run_for(12.0)
    assert "g2:1" not in members(world)
    step = step_of(world, "g0")
    world.network.unblock("g2", "lh")
    world.network.unblock("lh", "g2")
    world.run_for(8.0)
    assert step_of(world, "g0") > step + 50
    assert members(world) == ["g0:1", "g1:1", "g2:1"]
