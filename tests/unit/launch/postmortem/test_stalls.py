"""When a step lasts too long: pure."""

from __future__ import annotations

from typing import Any

import pytest

from torchft_x.launch.postmortem.stalls import is_stalled
from torchft_x.timing import TIMING


def status(**fields: Any) -> dict[str, Any]:
    """Return a worker's status. Its times are counted in tenths of the shortest stall: seconds at scale 1."""
    usual = {"phase": "running", "commits": 9, "longest_step": 0.1, "timeout": 60.0, "step_seconds": 11.0}
    return {k: v * TIMING.stall_usual / 10 if isinstance(v, float) else v for k, v in (usual | fields).items()}


@pytest.mark.parametrize(
    ("fields", "stalled"),
    [
        ({}, True),
        ({"step_seconds": 9.0}, False),
        ({"longest_step": 4.0}, False),  # five times that
        ({"longest_step": 4.0, "step_seconds": 21.0}, True),
        ({"timeout": 8.0, "step_seconds": 7.0}, True),  # before the collective is given up
        ({"timeout": 8.0, "step_seconds": 7.0, "longest_step": 5.0}, False),  # such steps are usual here
        ({"phase": "asking"}, False),  # it waits for others
        ({"phase": "idle"}, True),  # it does not begin the next one
        ({"paused": True}, False),
        ({"phase": "idle", "leaving": True}, False),  # it has left, and does something else
        ({"commits": 0}, False),  # a first step compiles
        ({"commits": 0, "step_seconds": 46.0}, True),
        ({"commits": 0, "step_seconds": 46.0, "phase": "idle"}, False),
        ({"apart": True, "phase": "idle", "timeout": 10.0, "step_seconds": 20.0}, False),  # it makes inner steps
        ({"apart": True, "phase": "idle", "timeout": 10.0, "step_seconds": 61.0}, True),
        ({"apart": True, "phase": "idle", "longest_step": 15.0, "step_seconds": 61.0}, False),
        ({"apart": True, "timeout": 10.0, "step_seconds": 8.0}, True),  # in an exchange
    ],
)
def test_steps_of_its_own_are_the_measure(fields: dict[str, Any], stalled: bool) -> None:
    assert is_stalled(status(**fields)) is stalled
