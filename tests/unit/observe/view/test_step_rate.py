"""How fast the job is."""

from __future__ import annotations

import pytest

from torchft_x.observe.view.step_rate import StepRate


def test_steps_that_are_told_in_leaps() -> None:
    rate = StepRate()
    for t in range(10):
        rate.at(20 * t, float(t))
    assert rate.per_second(9.5) == 20.0


def test_it_falls_when_nothing_more_is_told() -> None:
    rate = StepRate()
    rate.at(0, -1.0)
    rate.at(5, 0.0)
    rate.at(15, 1.0)
    assert rate.per_second(2.5) == 10.0  # two leaps: it may only be late
    assert rate.per_second(12.0) == pytest.approx(1.0)


def test_a_start_does_not_count() -> None:
    """For half a minute after a start of 20 s the status said "1.9 steps a second" of a job that made 10."""
    rate = StepRate()
    for t, step in ((0, 0), (10, 0), (20, 5), (21, 15), (22, 25)):
        rate.at(step, float(t))
    assert rate.per_second(22.0) == 10.0


def test_only_the_last_while_counts() -> None:
    rate = StepRate()
    for t in range(100):
        rate.at(t if t < 50 else 50 + 10 * (t - 50), float(t))
    assert rate.per_second(99.0) == pytest.approx(10.0, rel=0.1)


def test_unknown_until_two_steps_were_told_and_again_after_a_new_lineage() -> None:
    rate = StepRate()
    rate.at(5, 0.0)
    rate.at(5, 1.0)
    assert rate.per_second(2.0) is None
    rate.at(200, 3.0)
    rate.at(50, 4.0)
    assert rate.per_second(4.0) is None
