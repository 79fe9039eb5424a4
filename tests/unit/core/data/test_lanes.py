"""Slots of groups that train apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchft_x.core.data.lanes import lane_slot, lane_slots
from torchft_x.core.data.ranges import members


def test_a_lane_has_a_period_of_slots_in_a_row_and_more_behind_the_others() -> None:
    assert [lane_slot(step, 1, 3, 2) for step in range(5)] == [2, 3, 8, 9, 14]
    assert lane_slots([2, 2, 2], 2) == ((0, 6),)
    assert lane_slots([2, 0, 3], 2) == ((0, 2), (4, 6), (10, 11))
    assert lane_slots([], 2) == lane_slots([0, 0], 2) == ()


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(1, 4))
def test_no_slot_is_in_two_lanes(steps: list[int], period: int) -> None:
    taken = [lane_slot(k, lane, len(steps), period) for lane, count in enumerate(steps) for k in range(count)]
    assert len(set(taken)) == len(taken)
    assert members(lane_slots(steps, period)) == sorted(taken)
