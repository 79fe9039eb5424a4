"""Scenarios with real processes: docs/dev/simulator.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario import networks
from tests.scenario.check import unequal
from tests.scenario.play import judge, longest_stall, play
from tests.scenario.real import cluster
from tests.scenario.stories import STORIES
from tests.util import scaled

pytestmark = [pytest.mark.timeout(240)]

REAL = (
    "alone_meanwhile",
    "bad_link",
    "cut_from_one_another",
    "everything",
    "kill_during_heal",
    "kill_source",
    "leave_without_lighthouse",
    "link_flap",
    "long_pause",
)
"""All scenarios run in the simulator (tests/unit/scenario); these also here, where a second is a second."""


@pytest.mark.parametrize("name", REAL)
def test_with_real_processes(name: str, tmp_path: Path) -> None:
    scenario = STORIES[name]
    assert not scenario.only_simulated
    missing = networks.missing()
    if scenario.cuts and missing:
        pytest.skip(missing)
    with cluster(scenario, tmp_path, networks=not missing) as stage:
        play(scenario, stage)
    stall, step = longest_stall(stage.record)
    dropped = len(stage.record.dropped)
    print(f"{stage.record.step} steps, longest stall {stall:.2f} s before step {step}, {dropped} dropped")
    findings = [*judge(scenario, stage.record, factor=scaled(1.0)), *unequal(stage.dumps)]
    assert not findings, "\n".join([*findings, f"everything is in {tmp_path}"])
