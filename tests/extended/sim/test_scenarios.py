"""Every scenario in the simulator, on several seeds."""

from __future__ import annotations

import pytest

from tests.scenario.simulated import Simulation, finish
from tests.scenario.stories import STORIES


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", STORIES)
def test_in_the_simulator(name: str, seed: int) -> None:
    finish(Simulation(STORIES[name], seed))
