"""Which groups are slower than the others."""

from __future__ import annotations

import pytest

from torchft_x.observe.view.slow_groups import SlowGroups


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
