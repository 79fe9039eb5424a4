"""Two lighthouses in the simulated cluster, and every rule of theirs that can be left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.sim.config import WorldConfig
from tests.sim.faults import Fault, strike
from tests.sim.lost import lost_for_good
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


def cut_off(world: World, site: str, *, both: bool = False, over: bool = False) -> None:
    """From the first lighthouse, or from both of them."""
    act = world.network.unblock if over else world.network.block
    for house in ("lh", "lh2")[: 1 + both]:
        act(site, house)
        act(house, site)


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
    assert lost_for_good(world)


def test_who_is_cut_off_from_the_first_lighthouse_comes_back_to_the_others() -> None:
    world = two()
    cut_off(world, "g2")
    world.run_for(12.0)
    assert "g2:1" not in members(world)
    step = step_of(world, "g0")
    cut_off(world, "g2", over=True)
    world.run_for(8.0)
    assert step_of(world, "g0") > step + 50
    assert members(world) == ["g0:1", "g1:1", "g2:1"]


@pytest.mark.parametrize("how", ["power", "crash"])
def test_who_only_healed_does_not_go_on_without_those_that_held_the_state(how: str) -> None:
    """The seed 7353535835992. A majority is here, and a half at the lighthouse that issued the quorum; but the only group
    that held its state may have committed in it. If nobody can say that it has ended, the job is lost for good.
    """
    house = replace(WorldConfig().lighthouse, min_replicas=2)
    world = two(lighthouse=house, restart_pause=(4.0, 4.0))
    strike(world, Fault(world.now, "crash", "g2"))
    cut_off(world, "g0", both=True)  # {g0, g1} is left, and then {g1, g2}
    assert world.run_while(lambda: members(world) != ["g1:1", "g2:2"], 10.0)
    strike(world, Fault(world.now, how, "g1", 60.0))
    cut_off(world, "g0", both=True, over=True)
    world.run_for(20.0)
    machine = world.lighthouse.machine
    assert machine is not None
    if how == "crash":  # its supervisor says that it has ended
        assert members(world) == ["g0:1", "g1:2", "g2:2"]
        assert not lost_for_good(world)
    else:
        assert members(world) == ["g1:1", "g2:2"]
        assert "g1:1 may still commit in it" in machine.undecided
        assert "the end of their lease proves nothing here" in machine.undecided
        assert lost_for_good(world)


def test_it_is_not_lost_for_good_while_a_supervisor_can_still_tell() -> None:
    """Both groups are killed while their supervisors reach no lighthouse: the next lives wait for what those will say."""
    world = two(groups=2)
    for group in ("g0", "g1"):
        cut_off(world, f"s{group}", both=True)
        strike(world, Fault(world.now, "crash", group))
    world.run_for(4.0)
    assert members(world) == ["g0:1", "g1:1"]
    assert not lost_for_good(world)
    for group in ("g0", "g1"):
        cut_off(world, f"s{group}", both=True, over=True)
    world.run_for(12.0)
    assert members(world) == ["g0:2", "g1:2"]


def test_a_supervisor_goes_on_telling_the_ends_that_are_still_asked_for() -> None:
    """As rpc.supervisor.fanout_client: nine lives have ended since, but the first was a member of the newest quorum received."""
    world = two(groups=2)
    supervisor = world.supervisors["g0"]
    world.lighthouse.lose_host()
    world.lighthouses[1].crash()
    for _ in range(10):
        lives = supervisor.lives
        strike(world, Fault(world.now, "crash", "g0"))
        assert world.run_while(lambda lives=lives: supervisor.lives == lives or not supervisor.running, 5.0)
    assert [w.replica_id for w in (r.word for r in supervisor._reports) if w][:2] == ["g0:1", "g0:3"]
    world.lighthouses[1].start()
    world.run_for(20.0)
    assert members(world) == [f"g0:{supervisor.lives}", "g1:1"]
