"""Every scenario file in the simulator, on several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario.language import read
from tests.scenario.simulated import Simulation, finish
from tests.unit.scenario.test_simulated import FILES


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_in_the_simulator(path: Path, seed: int) -> None:
    finish(Simulation(read(path), seed))
