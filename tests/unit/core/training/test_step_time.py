"""How long a step takes: nothing is said too early, no single step decides."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from torchft_x.core.training.step_clock import StepTimeEstimate


def after(steps: Sequence[float]) -> float:
    pace, now = StepTimeEstimate(), 100.0
    pace.begin(now)
    for took in steps:
        now += took
        pace.begin(now)
    return pace.seconds


def test_nothing_is_said_before_three_steps() -> None:
    assert StepTimeEstimate().seconds == after([]) == after([0.1]) == after([0.1] * 2) == 0.0


@pytest.mark.parametrize(
    ("steps", "seconds", "rel"),
    [
        ([0.1] * 3, 0.1, 1e-6),
        ([0.1, 0.2, 0.3], 0.2, 1e-6),  # the first steps count alike
        ([0.1, 0.2, 0.3, 0.2, 0.2], 0.2, 1e-6),
        ([0.1] * 20 + [0.2], 0.12, 1e-6),  # later on the newest has a fifth
        ([0.1] * 5 + [0.2], 0.12, 1e-6),
        ([0.1] * 20 + [60.0], 0.16, 1e-6),  # a pause counts as four steps
        # L2: grants are a second's worth of steps. After one step that was short by chance 48 were granted, which took
        # five seconds, and a newcomer waited for all of them.
        ([0.01, 0.1, 0.1], (0.01 + 0.04 + 0.1) / 3, 0.1),
        ([0.1] * 5 + [0.3] * 20, 0.3, 0.02),  # it follows what stays
    ],
)
def test_no_single_step_decides(steps: list[float], seconds: float, rel: float) -> None:
    assert after(steps) == pytest.approx(seconds, rel=rel)
