"""The full protocol in the simulated cluster: grants, the vote between groups, settling, redo."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.config import WorldConfig
from tests.sim.faults import Fault, strike
from tests.sim.kinds.processes import pause_all
from tests.sim.rank_node import RankNode
from tests.sim.swarm import check_newcomer
from tests.sim.world import World
from tests.unit.sim.test_world import all_is_well, cluster, hit, members, node, said, step_of
from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.lighthouse.machine import LighthouseConfig
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.core.types import State


def full(**config: Any) -> World:
    return cluster(**{"commit_vote": True, "runs_on": True, "max_redo": 2, "groups": 3, **config})


@pytest.mark.parametrize(("vote", "ranks"), [(False, 1), (False, 2), (True, 1), (True, 2)])
@pytest.mark.parametrize("seed", range(6))
def test_without_faults_grants_need_no_quorum_and_nothing_ends_by_a_time_out(seed: int, vote: bool, ranks: int) -> None:
    groups = 2 + seed % 2
    world = World(seed, WorldConfig(groups=groups, ranks=ranks, commit_vote=vote, runs_on=True, trace=None))
    world.run_for(5.0)
    assert min(step_of(world, f"g{i}") for i in range(groups)) > 70
    assert world.checker.quorums <= 4
    assert not [text for text in ("drops", "in time", "too long") if said(world, text)]


def test_a_newcomer_waits_for_a_grant_at_most() -> None:
    world = full()
    check_newcomer(world)
    assert members(world)[-1] == "late:1"
    assert not said(world, "drops")


def test_killed_in_the_reduction_nobody_drops_a_gradient() -> None:
    world = full()
    hit(world, "trap_crash", "g2", other="reduce")
    world.run_for(0.5)
    assert said(world, "reduces again step")
    assert not world.checker.figures["dropped"]
    assert all_is_well(world)


@pytest.mark.parametrize("policy", Policy)
def test_killed_in_the_reduction_its_slots_become_debt_or_the_step_is_computed_again(policy: Policy) -> None:
    """I10, in each commit of each member. The slots of g1 lie between those of the others."""
    world = full(data=DataOptions(policy, 1 if policy is Policy.SHRINK else 5, 2), samples=37)
    owed, check = [], world.checker.samples.check

    def record(rank: RankNode, state: State) -> None:
        check(rank, state)
        owed.append(rank.step.data.owed)

    world.checker.samples.check = record  # type: ignore[method-assign]
    hit(world, "trap_crash", "g1", other="reduce")
    world.run_for(0.5)
    assert bool(said(world, "reduces again step")) == (policy is not Policy.STRICT)
    assert max(owed) == {Policy.SHRINK: 2, Policy.CONSTANT: 4, Policy.STRICT: 0}[policy]
    assert owed[-1] == 0
    assert all_is_well(world)


@pytest.mark.parametrize("policy", [Policy.CONSTANT, Policy.STRICT])
def test_killed_in_the_reduction_its_streams_stay_where_they_are_or_the_step_is_computed_again(policy: Policy) -> None:
    world = full(data=DataOptions(policy, 5, 1), streams=True)
    hit(world, "trap_crash", "g1", other="reduce")
    world.run_for(0.5)
    assert bool(said(world, "reduces again step")) == (policy is Policy.CONSTANT)
    counts = node(world, "g0").ranks[0].step.data.counts
    assert [max(counts) - count for count in counts] == ([0, 0, 1, 1, 0] if policy is Policy.CONSTANT else [0] * 5)
    assert all_is_well(world)


def a_spare_steps_in(group: str) -> World:
    """g0 and g1 contribute and g2 is the spare; one of the two is killed in a reduction."""
    world = full(min_replica_size=2, spares=True)
    hit(world, "trap_crash", group, other="reduce")
    world.run_for(0.5)
    return world


@pytest.mark.parametrize(("group", "keeps"), [("g0", []), ("g1", ["g0:1"])])
def test_killed_in_the_reduction_a_spare_computes_anew(group: str, keeps: list[str]) -> None:
    """I9, and so does who has another number then: the one after g0."""
    world = a_spare_steps_in(group)
    redone = [line for line in world.trace.lines() if "reduces again" in line]
    assert [name for name in ("g0:1", "g1:1", "g2:1") if any(name in line for line in redone)] == keeps
    assert world.checker.figures["lost: another part"] == 2 - len(keeps)
    assert all_is_well(world)


def test_killed_in_the_vote_the_survivors_adopt() -> None:
    """All are prepared, so that somebody who is away may have committed: the others commit the same bits."""
    for seconds in (2.0, 2.1, 2.2, 2.3, 2.4, 2.5):  # until g2 comes last to the vote, and the others are prepared
        world = full(seconds=seconds)
        hit(world, "trap_crash", "g2", other="cross")
        world.run_for(0.5)
        if world.checker.figures["adopted"]:
            break
    assert said(world, "does not know about step")
    assert world.checker.figures["adopted"] == 2
    assert not world.checker.figures["redos"]
    assert all_is_well(world)


def test_a_vote_that_passed_on_one_side_is_committed_late_on_the_other() -> None:
    """Seed by seed until the result of the vote has reached one of the two survivors and not the other."""
    for _ in range(20):
        world = full(groups=2, one_host=True)
        world.fabric.late["g1"] = 0.01
        hit(world, "trap_crash", "g0", other="decided")
        world.run_for(1.0)
        if world.checker.figures["adopted"]:
            break
        world.fabric.late.clear()
    assert said(world, "commits late step")
    assert all_is_well(world)


@pytest.mark.parametrize("vote", [False, True])
def test_stopped_between_the_lease_check_and_the_optimizer(vote: bool) -> None:
    """It carries out late what was decided in time, and finds its lineage where it left it, or heals."""
    world = full(commit_vote=vote)
    hit(world, "trap_pause", "g1", 12.0, "decided")
    world.run_for(13.0)
    assert step_of(world, "g0") > 200
    assert all_is_well(world)
    assert step_of(world, "g1") > 200


def test_what_is_undecided_is_settled_inside_should_commit() -> None:
    world = full()
    world.fabric.glitches.add("g1")
    world.run_for(1.0)
    assert world.checker.figures["redos"] + world.checker.figures["late commits"] > 0
    assert not world.checker.figures["dropped"]


def test_a_carrier_that_is_too_few_does_not_leave_the_healer_waiting_in_the_vote() -> None:
    """Shrunk from a swarm run: g0 alone at the top is fewer than min_replica_size, and g1 heals beside it."""
    world = full(groups=2, min_replica_size=2, quorum_timeout=2.0, retry_quorum=False)
    strike(world, Fault(world.now, "crash", "g1"))
    world.run_for(3.0)
    assert not said(world, "too long")
    assert all_is_well(world)
    assert members(world) == ["g0:1", "g1:2"]


def test_after_max_redo_the_gradients_are_dropped() -> None:
    world = full(max_redo=1, commit_vote=False, runs_on=False)
    for _ in range(600):
        world.fabric.glitches.add("g1")
        world.run_for(0.005)
    assert world.checker.figures["lost: max_redo"] > 0
    assert all_is_well(world)


def test_a_group_is_refused_where_the_peers_clients_train_and_these_go_on() -> None:
    world = cluster(2.0, groups=1, peers=2, init_sync=False, startup=(0.1, 0.1))
    assert said(world, "run all groups on one library")
    strike(world, Fault(world.now, "crash", "u1"))
    world.run_for(8.0)
    assert members(world) == ["u0:1", "u1:2"]
    assert world.peers["u0"].step > 80


def test_leases_of_both_are_longer_than_a_pause_of_the_lighthouse() -> None:
    """R16: no lighthouse for a while, and nobody stops."""
    house = LighthouseConfig(lease=8.0, silence=SilenceLimits.all(1.0), boot_id="host")
    world = full(lighthouse=house)
    before = step_of(world, "g0")
    strike(world, Fault(world.now, "lighthouse", seconds=4.0))
    world.run_for(4.0)
    assert step_of(world, "g0") > before + 60
    world.run_for(1.0)
    assert not said(world, "drops")
    assert all_is_well(world)


@pytest.mark.parametrize("newcomer", [False, True])
@pytest.mark.parametrize("other", ["", "host"])
def test_R16_a_group_that_finds_the_next_lighthouse_later_than_the_others_costs_no_step(
    other: str, newcomer: bool
) -> None:
    """The others run on by what they promised in their hellos. Without that they stop until it is back: for a second and
    a half if the journal is lost, and beside a newcomer it is left out as late."""
    world = full(lighthouse=LighthouseConfig(lease=60.0, silence=SilenceLimits.all(5.0), boot_id="host"))
    strike(world, Fault(world.now, "lighthouse", seconds=2.0, other=other))
    strike(world, Fault(world.now, "part", "g1", 2.6, "lh"))
    world.run_for(1.0)
    if newcomer:
        world.add_group("late")
    before = step_of(world, "g0")
    world.run_for(5.0)
    assert step_of(world, "g0") > before + 75  # virtual time
    assert not [name for name in world.checker.figures if name.startswith(("dropped", "lost"))]
    assert all_is_well(world)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("point", ["ask", "reduce", "vote", "prepared", "cross", "crossed", "decided"])
def test_a_rank_that_dies_in_any_phase_of_the_vote_costs_the_others_no_step(point: str, rank: int) -> None:
    world = full(ranks=3)
    world.traps[("g2", point)] = [
        ("trap_crash", lambda world, node, _: node.end_rank(node.ranks[rank], -9, "killed"), 0.0)
    ]
    world.run_for(0.5)
    assert said(world, f"is caught at '{point}'")
    assert not [name for name in world.checker.figures if name.startswith(("dropped", "lost"))]
    assert all_is_well(world)  # and I2: no two ranks of a group decided differently


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("seconds", [0.3, 2.5, 7.0])
@pytest.mark.parametrize("point", ["vote", "prepared", "crossed", "decided"])
def test_a_rank_that_stops_in_the_vote_decides_as_the_others(point: str, seconds: float, rank: int) -> None:
    world = full(ranks=2)
    world.traps[("g2", point)] = [
        ("trap_pause", lambda world, node, _: pause_all(world, [node.processes[rank]], seconds), 0.0)
    ]
    world.run_for(0.5)
    assert said(world, f"is caught at '{point}'")
    assert all_is_well(world)


def test_all_ranks_begin_a_step_as_rank_0_does() -> None:
    """Word that the quorum is over reaches the ranks at different moments: they run on all of them, or none."""
    world = full(ranks=3)
    for _ in range(30):
        strike(world, Fault(world.now, "glitch", "g1", 0.0, ""))
        world.run_for(0.11)
    assert all_is_well(world)
    assert not world.checker.figures["dropped"]
