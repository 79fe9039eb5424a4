"""How long a rank waits for other groups: by what it needed itself for the same stretch."""

from __future__ import annotations

from typing import Any

import pytest

from torchft_x.core.training.step_clock import LATENESS_FACTOR, WaitBudget
from torchft_x.errors import CollectiveError
from torchft_x.timing import TIMING


def budget(own: float, **more: Any) -> WaitBudget:
    """A rank that has worked for so long since the last step, and waits now (at that time)."""
    b = WaitBudget(0.0, **{"most": 60.0, **more})
    b.start_wait(own)
    return b


@pytest.mark.parametrize(
    ("own", "limit"),
    [(0.0, TIMING.lateness), (0.1, TIMING.lateness), (1.0, LATENESS_FACTOR), (6.0, 6 * LATENESS_FACTOR), (20.0, 60.0)],
)
def test_the_longer_its_own_part_the_longer_it_waits(own: float, limit: float) -> None:
    assert budget(own).limit == limit


def test_a_limit_of_the_user_is_kept_to_and_never_exceeds_the_timeout() -> None:
    assert budget(5.0, fixed=1.0).limit == 1.0
    assert budget(0.1, fixed=500.0).limit == 60.0
    assert budget(0.1, fixed=500.0).patience(0.1) == 500.0


def test_only_the_timeout_counts_where_nobody_could_be_left_out() -> None:
    b = budget(0.1)
    assert b.start_wait(0.2, connected=False) == 60.0
    assert b.start_wait(0.3) == TIMING.lateness
    b.somebody_heals = True
    assert b.start_wait(0.4) == 60.0


def test_only_an_error_at_a_limit_of_its_own_is_explained() -> None:
    b = budget(0.1)
    late = CollectiveError("no answer", ("b:1",))
    assert b.explain(late, TIMING.lateness - 0.1) is late
    assert "another group is late: this one has waited 2.5 s" in str(b.explain(late, 2.5))
    other = ValueError("no limit's")
    assert b.explain(other, 2.5) is other
    b.start_wait(0.2, connected=False)
    assert b.explain(late, 2.5) is late


def test_waiting_is_not_work() -> None:
    told: list[bool] = []
    b = budget(1.0, tell=told.append)
    b.end_wait(10.0)
    b.start_wait(10.5)
    assert b.limit == pytest.approx(1.5 * LATENESS_FACTOR)
    assert told == [True, False, True]  # who looks on hears of each wait
    b = budget(20.0)  # an evaluation
    b.end_wait(20.0)
    b.next_step(20.0)
    b.start_wait(20.1)
    assert b.limit == TIMING.lateness  # work counts from the end of the last step


def test_who_asks_at_once_waits_for_others_at_the_boundary_as_long_as_in_a_reduction() -> None:
    b = WaitBudget(0.0, most=60.0)
    assert b.patience(0.1) == TIMING.lateness
    assert b.patience(10.0) == 10 * LATENESS_FACTOR  # its own evaluation of 10 s: others may have one, too


def test_who_has_waited_already_gives_the_others_a_moment() -> None:
    b = budget(0.1)
    b.end_wait(0.1 + TIMING.lateness)
    assert b.patience(0.1 + TIMING.lateness) == TIMING.ask_moment
    b.start_wait(0.2 + TIMING.lateness)
    b.end_wait(0.2 + TIMING.lateness)  # a reduction that had failed already changes nothing
    assert b.patience(0.2 + TIMING.lateness) == TIMING.ask_moment
    b = budget(20.0)
    b.end_wait(80.0)
    assert b.patience(80.0) == pytest.approx(20 * LATENESS_FACTOR - 60.0)


def test_each_step_begins_anew() -> None:
    b = budget(5.0)
    b.next_step(10.0)  # while it waits
    assert b.patience(12.0) == max(TIMING.lateness, LATENESS_FACTOR * 2.0)
    b.end_wait(20.0)  # what it waited for in the step before
    assert b.patience(20.0) == TIMING.lateness
    b.start_wait(20.0)
    b.end_wait(40.0)
    b.next_step(40.0)
    assert b.patience(40.0) == TIMING.lateness


def test_the_own_part_of_a_step_is_without_its_waits() -> None:
    b = WaitBudget(0.0, most=60.0)
    b.start_wait(2.0)
    b.end_wait(5.0)
    assert b.next_step(6.0) == 3.0
    b.start_wait(7.0)
    assert b.next_step(9.0) == 1.0  # while it waits
    assert b.next_step(9.5) == 0.5


def test_a_wait_ends_once() -> None:
    b = WaitBudget(0.0, most=1000.0, fixed=100.0)
    b.start_wait(0.0)
    b.end_wait(10.0)
    b.end_wait(50.0)
    assert b.patience(50.0) == 90.0
