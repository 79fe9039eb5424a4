"""A standby behind a lease in the simulated cluster: stories, and every part of the argument that can be left out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.faults import Fault, strike
from tests.sim.world import World
from tests.unit.sim.test_protocol import full
from tests.unit.sim.test_world import all_is_well, members, step_of
from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.timing import TIMING


def two(**config: Any) -> World:
    return full(standby=True, **config)


def serving(world: World) -> list[str]:
    return [house.site for house in world.lighthouses if house.machine is not None]


def test_the_host_of_the_first_is_lost_and_training_goes_on_at_the_standby() -> None:
    world = two()
    before = step_of(world, "g0")
    world.lighthouse.lose_host()
    world.run_for(TIMING.failover_ttl + TIMING.failover_margin + 6.0)
    assert serving(world) == ["lh2"]
    assert step_of(world, "g0") > before + 50
    strike(world, Fault(world.now, "crash", "g1"))
    world.run_for(3.0)
    assert members(world) == ["g0:1", "g1:2", "g2:1"]
    world.lighthouse.start()
    world.run_for(10.0)
    assert serving(world) == ["lh2"], "who comes back stands by"
    assert world.checker.lineage == 0
    assert all_is_well(world)


def test_the_host_of_whichever_serves_is_lost_again_and_again() -> None:
    world = two()
    for _ in range(3):
        strike(world, Fault(world.now, "holder_lost", "", 1.0))
        world.run_for(TIMING.failover_ttl + TIMING.failover_margin + 4.0)
        assert len(serving(world)) == 1
    assert members(world) == ["g0:1", "g1:1", "g2:1"]
    assert world.checker.lineage == 0
    assert all_is_well(world)


def test_the_host_of_the_lighthouse_and_of_a_group_is_lost_and_the_others_go_on_soon_after_the_take_over() -> None:
    world = two(one_host=False, timeout=60.0, lighthouse=LighthouseConfig(silence=SilenceLimits()))
    before = step_of(world, "g1")
    strike(world, Fault(world.now, "holder_lost", "", 60.0, "group"))
    world.run_for(TIMING.failover_ttl + TIMING.failover_margin + TIMING.silence_host + 1.0)
    assert members(world) == ["g1:1", "g2:1"]
    assert step_of(world, "g1") > before + 2
    assert world.checker.lineage == 0


def test_all_groups_are_killed_at_once_around_a_take_over_and_begin_again() -> None:
    """With a consensus of the groups that job was lost."""
    world = two(groups=2)
    world.lighthouse.lose_host()
    for group in ("g0", "g1"):
        strike(world, Fault(world.now, "crash", group))
    world.run_for(TIMING.failover_ttl + TIMING.failover_margin + 15.0)
    assert members(world) == ["g0:2", "g1:2"]
    assert all_is_well(world)


def test_a_killed_holder_has_the_lease_again_at_once() -> None:
    world = two()
    world.lighthouse.crash()
    world.run_for(0.3)
    world.lighthouse.start()
    world.run_for(2.0)
    assert serving(world) == ["lh"]
    assert world.lighthouse.lease.entry.epoch == 2
    assert members(world) == ["g0:1", "g1:1", "g2:1"]


@pytest.mark.parametrize("seconds", [1.0, TIMING.failover_ttl + TIMING.failover_margin + 4.0])
def test_a_holder_that_was_stopped_issues_nothing_when_another_one_serves(seconds: float) -> None:
    world = two()
    strike(world, Fault(world.now, "pause", "lh", seconds))
    world.run_for(seconds - 0.5)
    there = ["lh"] if seconds < TIMING.failover_ttl else ["lh", "lh2"]  # it can't know
    assert serving(world) == there
    world.run_for(6.0)
    assert serving(world) == there[-1:]
    assert world.checker.lineage == 0
    assert all_is_well(world)


def test_a_quorum_that_a_stopped_holder_sends_late_is_known_to_the_next_one() -> None:
    world = two()
    strike(world, Fault(world.now, "holder_stops_sending", "", TIMING.failover_ttl + TIMING.failover_margin + 6.0))
    strike(world, Fault(world.now, "crash", "g2"))
    world.run_for(TIMING.failover_ttl + TIMING.failover_margin + 4.0)
    assert "lh2" in serving(world)
    world.run_for(12.0)
    assert serving(world) == ["lh2"]
    assert members(world) == ["g0:1", "g1:1", "g2:2"]
    assert all_is_well(world)


@pytest.mark.parametrize("seconds", [2.0, TIMING.failover_ttl + TIMING.failover_margin + 10.0])
def test_while_the_directory_is_away_nobody_issues_and_groups_run_on(seconds: float) -> None:
    world = two()
    before, quorums = step_of(world, "g0"), world.checker.quorums
    strike(world, Fault(world.now, "shared_gone", "", seconds))
    world.run_for(seconds - 0.1)
    assert world.checker.quorums <= quorums + 1
    assert step_of(world, "g0") > before + 5
    world.run_for(TIMING.failover_ttl + TIMING.failover_margin + 6.0)
    assert len(serving(world)) == 1
    strike(world, Fault(world.now, "crash", "g1"))
    world.run_for(4.0)
    assert members(world) == ["g0:1", "g1:2", "g2:1"]
    assert all_is_well(world)
