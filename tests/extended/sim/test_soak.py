"""scripts/soak: counts, adds up, and a violation ends it with code 1 and the command that replays it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.sim import soak, swarm
from tests.sim.config import WorldConfig
from tests.sim.faults import Fault, strike
from tests.sim.invariants import Violation
from tests.sim.world import World


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


def test_figures_add_up(tmp_path: Path) -> None:
    path = tmp_path / "sums.json"
    total = swarm.Total(runs=2, events=10, faults=Counter(crash=3))
    soak.add_to_file(path, total, [], {"cpu_seconds": 1.5})
    finding = "  1.2  g0  commits\nI3 is violated at 1.3 s, seed 7: why\nReplay it: ..."
    sums = soak.add_to_file(path, total, [finding], {"cpu_seconds": 1.5})
    assert (sums["runs"], sums["events"], sums["faults_total"], sums["violations"]) == (4, 20, 6, 1)
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["sums"] == sums
    assert [entry["found"] for entry in book["soaks"]] == [[], ["I3 is violated at 1.3 s, seed 7: why"]]


def test_what_lies_in_wait_counts_when_it_strikes() -> None:
    world = World(3, WorldConfig(groups=2, trace=None))
    world.run_for(2.0)
    for kind, other in (("trap_crash", "nowhere"), ("spoil_fetch", ""), ("spoil_load", "")):
        strike(world, Fault(0.0, kind, "g0", 1.0, other))
    assert world.counts.total() == 0
    world.run_for(5.0)
    assert world.counts.total() == 0  # nobody healed, nobody came to that point
    strike(world, Fault(world.now, "veto", "g1"))
    assert world.counts.total() == 0
    strike(world, Fault(world.now, "trap_crash", "g1", 1.0, "reduce"))
    world.run_for(5.0)
    assert (world.counts["trap_crash"], world.counts["veto"]) == (1, 1)


@pytest.mark.parametrize("error", [Violation(5, "I3", "an id came twice", 1.0, ["a line"]), KeyError("a defect")])
def test_a_finding_stops_the_worker_and_says_how_to_replay(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seed: int) -> swarm.Total:
        raise error

    monkeypatch.setattr(swarm, "run", broken)
    _, seed, word = soak.work(5, float("inf"))
    assert seed == 5
    assert "python -m tests.sim.run --seed 5" in word
