"""A member that lies, at random: the invariants hold for the others, and they are not held up for long."""

from __future__ import annotations

import time

import pytest

from tests.sim import lies, swarm


@pytest.mark.parametrize("standby", [0.0, 1.0])
def test_many_lies_and_faults(standby: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "STANDBY", standby)
    end, seed = time.process_time() + 10.0, 5_000_000
    while time.process_time() < end:
        lies.run(seed)
        seed += 1
