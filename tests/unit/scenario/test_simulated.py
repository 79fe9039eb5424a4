"""Every scenario file in the simulator, on several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario.language import read
from tests.scenario.simulated import Simulation, finish

FILES = sorted((Path(__file__).parents[2] / "scenario/files").glob("*.txt"))
SEEDS = range(3)  # ./scripts/soak has more of them


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_in_the_simulator(path: Path, seed: int) -> None:
    finish(Simulation(read(path), seed))
