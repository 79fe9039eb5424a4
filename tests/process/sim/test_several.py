"""A standby behind a lease in the simulated cluster: stories, and every part of the argument that can be left out."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.sim import swarm
from tests.sim.invariants import Violation
from tests.sim.lighthouse_node import LighthouseNode
from tests.sim.shared import SharedDirectory
from tests.sim.variants import _patched

# --- the argument, part by part ---------------------------------------------------------------------------------------


def _believe(self: LighthouseNode) -> bool:
    return self._holds()


def _no_journal(self: SharedDirectory, site: str) -> None:
    return None


PARTS = {
    "no swap before sending": ((LighthouseNode, "_confirm", _believe),),
    "the next one reads no journal": ((SharedDirectory, "inherit", _no_journal),),
}


def applied(part: str) -> AbstractContextManager[Any]:
    return _patched(*PARTS[part])()


@pytest.mark.parametrize("part", PARTS)
def test_what_is_left_out_is_found(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "STANDBY", 1.0)
    end, seed = time.process_time() + 60.0, 0
    with applied(part):
        while time.process_time() < end:
            try:
                swarm.run(seed, trace=60)
            except Violation:
                return
            seed += 1
    raise AssertionError(f"nothing was found in {seed} runs")
