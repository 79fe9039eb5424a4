"""Every scenario in the simulator; on more seeds: tests/extended/sim/test_scenarios.py."""

from __future__ import annotations

import pytest

from tests.scenario.simulated import Simulation, finish
from tests.scenario.stories import STORIES


@pytest.mark.parametrize("name", STORIES)
def test_in_the_simulator(name: str) -> None:
    finish(Simulation(STORIES[name], 0))
