"""Every scenario file in the simulator, on several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario.language import read
from tests.scenario.simulated import Simulation, finish
from tests.scenario.values import Scenario

FILES = sorted((Path(__file__).parents[2] / "scenario/files").glob("*.txt"))
SEEDS = 10


def failing(scenario: Scenario) -> list[str]:
    """What each seed that fails has to say."""
    said = []
    for seed in range(SEEDS):
        try:
            finish(Simulation(scenario, seed))
        except AssertionError as e:
            said.append(str(e))
    return said


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_in_the_simulator(path: Path) -> None:
    scenario = read(path)
    said = failing(scenario)
    if scenario.fails_today:
        assert said, "It holds on all seeds: take the line 'fails today' away."
    else:
        assert not said, f"{len(said)} of {SEEDS} seeds fail, the first:\n{said[0]}"
