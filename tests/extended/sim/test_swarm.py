"""Random runs until a budget of processor seconds is used up: a few here, a quarter of a minute in the full run, hours with scripts/soak.

A failing seed prints its invariant, the end of its trace, and the command that replays it.
"""

from __future__ import annotations

from tests.process.sim.test_swarm import spend
from tests.sim.faults import KINDS


def test_a_quarter_of_a_minute_of_swarm() -> None:
    total = spend(15.0, first_seed=1_000_000, kinds=KINDS, most=1000)
    assert set(total.faults) == set(KINDS)
