"""scripts/soak: counts, adds up, and a violation ends it with code 1 and the command that replays it."""

from __future__ import annotations

import json
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.sim import soak, swarm
from tests.sim.invariants import Violation


def test_a_short_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sums = tmp_path / "sums.json"
    arguments = ["soak", "--minutes", "0.03", "--processes", "1", "--first-seed", "5", "--total", str(sums)]
    monkeypatch.setattr("sys.argv", arguments)
    assert soak.main() == 0
    said = json.loads(sums.read_text(encoding="utf-8"))
    sums = said["sums"]
    assert sums["runs"] >= 1
    assert sums["faults_total"] == sum(sums["faults"].values()) > 0
    assert sums["violations"] == 0
    (entry,) = said["soaks"]
    assert (entry["first_seed"], entry["runs"], entry["found"]) == (5, sums["runs"], [])
    assert "0 violations" in capsys.readouterr().out


@pytest.mark.parametrize("error", [Violation(5, "I3", "an id came twice", 1.0, ["a line"]), KeyError("a defect")])
def test_a_finding_stops_the_worker_and_says_how_to_replay(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seed: int) -> swarm.Report:
        raise error

    monkeypatch.setattr(swarm, "run", broken)
    results: Any = SimpleQueue()
    soak.work(5, float("inf"), results)
    _, seed, word = results.get()
    assert seed == 5
    assert "python -m tests.sim.run --seed 5" in word
