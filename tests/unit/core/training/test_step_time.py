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
    assert after([0.1] * 3) == pytest.approx(0.1)


def test_the_first_steps_count_alike() -> None:
    assert after([0.1, 0.2, 0.3]) == pytest.approx(0.2)
    assert after([0.1, 0.2, 0.3, 0.2, 0.2]) == pytest.approx(0.2)


def test_later_on_the_newest_has_a_fifth() -> None:
    assert after([0.1] * 20 + [0.2]) == pytest.approx(0.12)
    assert after([0.1] * 5 + [0.2]) == pytest.approx(0.12)


def test_a_pause_counts_as_four_steps() -> None:
    assert after([0.1] * 20 + [60.0]) == pytest.approx(0.16)


def test_a_first_step_that_is_short_by_chance() -> None:
    """L2: grants are a second's worth of steps. After one short step 48 steps were granted, which took five seconds,
    and a newcomer waited for all of them."""
    assert after([0.01, 0.1, 0.1]) == pytest.approx((0.01 + 0.04 + 0.1) / 3, rel=0.1)


def test_it_follows_what_stays() -> None:
    assert after([0.1] * 5 + [0.3] * 20) == pytest.approx(0.3, rel=0.02)


def test_it_shows_itself() -> None:
    assert repr(StepTimeEstimate()) == "<StepTimeEstimate 0 s, 0 steps>"
