"""Random runs for some seconds of a processor; for hours: scripts/soak. A failing seed prints how it is replayed."""

from __future__ import annotations

import time
from collections.abc import Collection

import pytest

from tests.sim import lies, swarm
from tests.sim.faults import KINDS


def spend(seconds: float, first_seed: int, *, kinds: Collection[str] = (), most: int = 0) -> swarm.Total:
    """Run seed after seed, and beyond `seconds` until all `kinds` have struck, in `most` runs. Raise the first `Violation`."""
    total = swarm.Total()
    end = time.process_time() + seconds  # of the processor, so that other load does not matter
    seed = first_seed
    while time.process_time() < end or (total.runs < most and set(kinds) - set(total.faults)):
        total.merge(swarm.run(seed))
        seed += 1
    print(f"\n{total}")
    return total


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
