"""When a state is copied into memory that outlives its process, and which copy counts."""

from __future__ import annotations

import itertools

import pytest

from torchft_x.core.training.memory_checkpoint import COST, SHORTEST, CopySchedule, newest_common, slot_to_write
from torchft_x.core.types import State


def copies(took: float, seconds: float, step: float) -> list[float]:
    """When copies begin that take so long each, if training looks every `step` seconds."""
    schedule, now, begun = CopySchedule(), 0.0, []
    while now < seconds:
        if schedule.due(now):
            begun.append(now)
            now += took
            schedule.copied(now, took)
        now += step
    return begun


def test_the_first_copy_is_due_at_once() -> None:
    assert CopySchedule().due(0.0)


@pytest.mark.parametrize("took", [0.005, 0.1, 3.0])
def test_copies_take_their_part_of_the_time_and_no_more(took: float) -> None:
    begun = copies(took, seconds=500 * took, step=took / 10)
    assert 0.8 * COST < len(begun) * took / (500 * took) <= COST * 1.05


def test_a_tiny_state_is_not_copied_all_the_time() -> None:
    begun = copies(1e-6, seconds=10.0, step=0.001)
    assert all(b - a >= SHORTEST for a, b in itertools.pairwise(begun))


def test_one_slow_copy_puts_the_next_off_and_is_forgotten() -> None:
    schedule = CopySchedule()
    schedule.copied(0.0, 1.0)
    assert not schedule.due(40.0)
    assert schedule.due(50.0)
    for n in range(8):
        schedule.copied(50.0 + n, 0.01)
    assert schedule.due(58.0)


@pytest.mark.parametrize(
    ("slots", "chosen"),
    [
        ((None, None), 0),
        ((State(3, 7), None), 1),
        ((None, State(3, 7)), 0),
        ((State(3, 7), State(5, 7)), 0),
        ((State(5, 9), State(5, 7)), 1),
    ],
)
def test_the_newest_complete_copy_is_never_overwritten(slots: tuple[State | None, ...], chosen: int) -> None:
    assert slot_to_write(slots) == chosen


def test_a_group_goes_on_from_the_newest_copy_that_all_its_ranks_hold() -> None:
    a, b, c = State(8, 1), State(16, 1), State(24, 2)
    assert newest_common([[a, b], [b, c], [a, b]]) == b
    assert newest_common([[a, b]]) == b
    assert newest_common([[a], []]) is None
    assert newest_common([[State(8, 1)], [State(8, 2)]]) is None  # the same step of two histories
    assert newest_common([]) is None
