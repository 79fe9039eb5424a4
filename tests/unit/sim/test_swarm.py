"""Some runs of the swarm. tests/extended/sim has more of them, and scripts/soak runs for hours.

A failing seed prints its invariant, the end of its trace, and the command that replays it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim import swarm
from tests.sim.config import WorldConfig
from tests.sim.faults import KINDS, Fault, strike
from tests.sim.world import World


@pytest.mark.parametrize(
    ("seed", "standby"),
    [
        # A1, the checker: who was cut off led by step, and the steps of a lineage begun meanwhile were undone.
        (7353563700708, 0.0),
        # L2: one short step was taken for the speed of all, so a hundred steps were granted, and a newcomer waited.
        (7353569982592, 0.0),
        # L2, the checker: the refused call of a dead attempt of a torchft client counted as one of its present attempt.
        (100003, 0.0),
        # L1: an end that no supervisor reported any more was waited for without end.
        (7353582223626, 1.0),
        # I4, the checker: a quorum whose receiver had died was taken for never in effect.
        (7353642926756, 0.3),
        # L1, the checker: a stopped lighthouse issued a quorum when it went on, which nobody could receive.
        (7353761926564, 0.3),
        # I4, the checker: a quorum that a newcomer never received was in effect for those who had left the one before.
        (7353768145562, 0.3),
    ],
)
def test_what_the_soak_has_found(seed: int, standby: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay seeds that once violated an invariant. `standby`: the share of runs with two lighthouses in that soak."""
    for setting in ("LATER_SHARE", "LATEST_SHARE", "NEWEST_SHARE", "MEMORY", "DATA"):
        monkeypatch.setattr(swarm, setting, 0.0)
    monkeypatch.setattr(swarm, "STANDBY", standby)
    swarm.run(seed)


@pytest.mark.parametrize("seed", [6, 8, 9, 11, 12, 13])
def test_a_random_run_violates_no_invariant(seed: int) -> None:
    assert swarm.run(seed).commits > 20


def test_seeds_differ_in_their_clusters_and_faults() -> None:
    scenarios = [swarm.scenario(seed) for seed in range(200)]
    assert len({config for config, _ in scenarios}) > 150
    assert {fault.kind for _, faults in scenarios for fault in faults} == set(KINDS)
    assert Counter(config.groups for config, _ in scenarios).keys() >= {1, 2, 3, 4, 5}


def test_nobody_is_expected_to_come_while_the_lighthouse_waits_for_a_lease() -> None:
    """Seed 7354257178394 of the soak: it had lost its host, and a member left before the next one was there (R8)."""
    world = World(1, WorldConfig(groups=2, journal=False, runs_on=True))
    assert world.run_while(lambda: world.checker.commits < 5, 30.0)
    world.run_for(2.0)
    assert swarm._trains(world)
    strike(world, Fault(world.now, "lighthouse", "", 2.0, "host"))
    strike(world, Fault(world.now, "leave", "g1", 0.0, ""))
    world.run_for(5.0)
    assert world.lighthouse.machine is not None
    assert not swarm._trains(world)
