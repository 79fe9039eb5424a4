"""Every scenario file in the simulator, on several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario.language import read
from tests.scenario.simulated import Simulation, finish

FILES = sorted(Path(__file__).with_name("files").glob("*.txt"))
SEEDS = 10


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_in_the_simulator(path: Path) -> None:
    scenario = read(path)
    for seed in range(SEEDS):
        finish(Simulation(scenario, seed))
