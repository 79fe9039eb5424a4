"""Random runs for some seconds of a processor; for hours: scripts/soak. A failing seed prints how it is replayed."""

from __future__ import annotations

import time

import pytest

from tests.process.sim.test_swarm import spend
from tests.sim import lies, swarm
from tests.sim.faults import KINDS


def test_a_quarter_of_a_minute_of_swarm() -> None:
    total = spend(15.0, first_seed=1_000_000, kinds=KINDS, most=1000)
    assert set(total.faults) == set(KINDS)


@pytest.mark.parametrize("standby", [0.0, 1.0])
def test_a_member_that_lies_breaks_no_invariant_of_the_others(standby: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "STANDBY", standby)
    end, seed = time.process_time() + 10.0, 5_000_000
    while time.process_time() < end:
        lies.run(seed)
        seed += 1
