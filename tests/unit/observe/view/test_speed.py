"""How fast the job is, and which groups are slower than the others."""

from __future__ import annotations

import pytest

from torchft_x.observe.view.speed import SlowGroups, StepRate


@pytest.mark.parametrize(
    ("own", "slow"),
    [
        ({}, {}),
        ({"0": 1.0}, {}),  # there are no others
        ({"0": 0.0, "1": 5.0}, {}),
        ({"0": 1.0, "1": 1.29}, {}),
        ({"0": 1.0, "1": 1.3}, {"1": 0.3}),
        ({"0": 1.0, "1": 1.2, "2": 1.5}, {}),  # one of the others is nearly as slow
        ({"0": 1.0, "1": 1.2, "2": 1.8}, {"2": 0.5}),
        ({"0": 1.0, "1": 1.0, "2": 3.0, "3": 1.0, "4": 2.0}, {"2": 2.0, "4": 1.0}),
        ({"0": 2.0, "1": 2.0, "2": 1.0}, {}),  # a group that is quicker than the others makes none of them slow
    ],
)
def test_who_is_slow(own: dict[str, float], slow: dict[str, float]) -> None:
    assert SlowGroups().poll(own) == pytest.approx(slow, abs=0.001)


def test_a_slow_group_is_named_until_it_is_nearly_as_quick_as_the_others() -> None:
    rule = SlowGroups()
    named = ["1" in rule.poll({"0": 1.0, "1": own}) for own in (1.2, 1.31, 1.29, 1.16, 1.14, 1.29, 1.4)]
    assert named == [False, True, True, True, False, False, True]
    assert rule.poll({"0": 1.0}) == {}
    assert rule.poll({"0": 1.0, "1": 1.2}) == {}  # it was away, and is judged anew


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
