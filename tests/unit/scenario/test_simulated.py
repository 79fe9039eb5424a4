"""Every scenario file in the simulator, on several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario.language import read
from tests.scenario.simulated import Simulation, finish

FILES = sorted((Path(__file__).parents[2] / "scenario/files").glob("*.txt"))
RUNS = [(path, seed) for path in FILES for seed in range(1 if path.stem == "lighthouse_away_a_minute" else 3)]


@pytest.mark.parametrize(("path", "seed"), RUNS, ids=lambda value: getattr(value, "stem", str(value)))
def test_in_the_simulator(path: Path, seed: int) -> None:
    finish(Simulation(read(path), seed))
