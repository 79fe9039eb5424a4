"""Random runs for some seconds of a processor; for hours: scripts/soak. A failing seed prints how it is replayed."""

from __future__ import annotations

import time

import pytest

from tests.sim import lies, swarm
from tests.sim.faults import KINDS


def test_swarm_until_each_fault_has_struck() -> None:
    """Run seed after seed for 15 s of the processor, so that other load does not matter, and longer for rare faults."""
    total, seed = swarm.Total(), 1_000_000
    end = time.process_time() + 15.0
    while time.process_time() < end or (total.runs < 1000 and set(total.faults) != set(KINDS)):
        total.merge(swarm.run(seed))
        seed += 1
    print(f"\n{total}")
    assert set(total.faults) == set(KINDS)


@pytest.mark.parametrize("standby", [0.0, 1.0])
def test_a_member_that_lies_breaks_no_invariant_of_the_others(standby: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "STANDBY", standby)
    end, seed = time.process_time() + 5.0, 5_000_000
    while time.process_time() < end:
        lies.run(seed)
        seed += 1
