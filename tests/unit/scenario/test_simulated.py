"""Every scenario file in the simulator; on more seeds: tests/extended/sim/test_scenarios.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario.language import read
from tests.scenario.simulated import Simulation, finish

FILES = sorted((Path(__file__).parents[2] / "scenario/files").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_in_the_simulator(path: Path) -> None:
    finish(Simulation(read(path), 0))
