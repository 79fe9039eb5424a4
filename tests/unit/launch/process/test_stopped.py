"""Which processes are stopped, and for how long: from looks with their times alone."""

from __future__ import annotations

import pytest

from torchft_x.launch.process.stopped import StoppedProcesses
from torchft_x.timing import TIMING


def looks(
    halts: StoppedProcesses, stopped: set[int], since: float, until: float, turns: int = 0
) -> list[tuple[int | None, float]]:
    """Ten looks in the time after which a stop is reported, in which `since` and `until` are counted; the news."""
    count = round((until - since) * 10)
    reported = [
        halts.poll(dict.fromkeys(stopped, turns), TIMING.stop_report * (since + i / 10)) for i in range(count + 1)
    ]
    return [x for x in reported if x is not None]


def test_a_stop_is_told_once_and_its_end_too() -> None:
    halts = StoppedProcesses()
    ((rank, seconds),) = looks(halts, {1}, 0.0, 5.0)
    assert rank == 1
    assert seconds == pytest.approx(TIMING.stop_report, rel=0.11)
    assert looks(halts, set(), 5.1, 6.0) == [(None, 0.0)]


def test_each_stop_counts_from_its_own_begin() -> None:
    halts = StoppedProcesses()
    for begin in (0.0, 2.0, 4.0):
        assert looks(halts, {0}, begin, begin + 0.9) == []
        assert looks(halts, set(), begin + 1.0, begin + 1.9) == []


def test_a_worker_that_went_on_between_two_looks_is_stopped_anew() -> None:
    """The supervisor looks ten times a second. A process that goes on for 50 ms between two stops was taken for one
    that is stopped all the time."""
    halts = StoppedProcesses()
    assert looks(halts, {0}, 0.0, 0.7, turns=5) == []
    assert looks(halts, {0}, 0.8, 1.5, turns=9) == []
    assert [rank for rank, _ in looks(halts, {0}, 1.6, 2.5, turns=9)] == [0]
    assert looks(halts, {0}, 2.6, 3.0, turns=12) == [(None, 0.0)]


def test_another_one_is_told_when_the_first_goes_on() -> None:
    halts = StoppedProcesses()
    assert [rank for rank, _ in looks(halts, {0, 1}, 0.0, 2.0)] == [0]
    assert [rank for rank, _ in looks(halts, {1}, 2.1, 3.0)] == [1]


def test_a_supervisor_that_was_stopped_with_its_workers_blames_none() -> None:
    halts = StoppedProcesses()
    assert looks(halts, {0}, 0.0, 0.1) == []
    assert looks(halts, {0}, 60.0, 60.2) == []  # the gap counts as a short one
    assert looks(halts, set(), 60.3, 61.0) == []
