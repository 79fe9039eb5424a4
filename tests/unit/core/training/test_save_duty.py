"""Who saves, when, and where it may."""

from __future__ import annotations

import pytest

from torchft_x.core.training.save_duty import (
    MOST_RESTS,
    MOST_WAITED,
    SAY_AGAIN,
    Claim,
    Entry,
    SaveDuty,
    SaveFailures,
    rest,
)
from torchft_x.timing import TIMING


def saved(duty: SaveDuty, places: dict[int, int | None], steps: range) -> list[int]:
    """`places`: from which step on."""
    place: int | None = None
    result = []
    for step in steps:
        place = places.get(step, place)
        if duty.committed(step, place):
            result.append(step)
    return result


def test_the_first_group_saves_at_each_due_step() -> None:
    assert saved(SaveDuty(10), {1: 0}, range(1, 31)) == [10, 20, 30]
    assert saved(SaveDuty(1), {1: 0}, range(1, 4)) == [1, 2, 3]


def test_no_other_one_does() -> None:
    assert saved(SaveDuty(10), {1: 1}, range(1, 31)) == []
    assert saved(SaveDuty(10), {1: None}, range(1, 31)) == []


def test_who_becomes_the_first_takes_over_at_once() -> None:
    """... what may have been in hand, and only then."""
    assert saved(SaveDuty(10), {1: 1, 12: 0}, range(1, 31)) == [12, 20, 30]
    assert saved(SaveDuty(10), {1: 1, 5: 0}, range(1, 31)) == [10, 20, 30]
    assert saved(SaveDuty(10), {1: 1, 10: 0}, range(1, 21)) == [10, 20]


def test_a_first_group_that_comes_and_goes_costs_one_save_for_each_due_step() -> None:
    places = {1: 1, 12: 0, 13: 1, 14: 0, 15: 1, 16: 0, 17: 1, 21: 0, 22: 1, 23: 0}
    assert saved(SaveDuty(10), places, range(1, 28)) == [12, 21]


def test_a_healing_group_has_no_place_and_takes_over_like_the_others() -> None:
    assert saved(SaveDuty(10), {1: None, 9: 0}, range(1, 21)) == [10, 20]
    assert saved(SaveDuty(10), {1: 1, 10: None, 11: 0}, range(1, 21)) == [11, 20]


OTHER = Entry("other", 3, False)


def test_an_empty_place_and_ones_own_may_be_written_to() -> None:
    for entry in (None, Entry("us", 7, False), Entry("us", 7, True), Entry("other", 7, True)):
        claim = Claim("us")
        assert claim.seen(entry, 0.0) == ""
        assert claim.ours


def test_another_jobs_is_watched_and_taken_when_it_is_dead() -> None:
    claim = Claim("us")
    for now in (100.0, 105.0, 100.0 + TIMING.claim_watch - 0.1):
        assert claim.seen(OTHER, now) == ""
        assert not claim.ours
    assert claim.seen(OTHER, 100.0 + TIMING.claim_watch) == ""
    assert claim.ours


def test_another_job_that_runs_is_refused() -> None:
    claim = Claim("us")
    assert claim.seen(OTHER, 100.0) == ""
    assert "runs now" in claim.seen(OTHER._replace(beat=4), 105.0)
    assert not claim.ours


def test_another_job_that_ends_meanwhile_leaves_its_place() -> None:
    claim = Claim("us")
    claim.seen(OTHER, 100.0)
    assert claim.seen(OTHER._replace(over=True), 105.0) == ""
    assert claim.ours


def test_one_that_comes_later_is_noticed() -> None:
    claim = Claim("us")
    claim.seen(Entry("us", 1, False), 100.0)
    assert "has begun" in claim.seen(OTHER, 1000.0)


def test_failing_saves_are_told_once_a_minute() -> None:
    failures = SaveFailures()
    assert failures.failed("no space.", 5.0) == "a checkpoint was not saved; training goes on: no space."
    assert failures.failed("no space.", 5.0 + SAY_AGAIN - 1) == ""
    assert "not saved (3 in a row); tr" in failures.failed("no space.", 5.0 + SAY_AGAIN)
    failures.worked()
    assert "in a row" not in failures.failed("no space.", 1000.0)


def test_a_save_rests_where_training_waits_for_it() -> None:
    assert rest(0.1, 0.0) == 0.0
    assert rest(0.1, 0.5 * MOST_WAITED * 0.1) == 0.0
    assert rest(0.1, 0.02) == pytest.approx(0.02 / MOST_WAITED - 0.1)
    assert rest(0.1, 10.0) == pytest.approx(MOST_RESTS * 0.1)
    assert rest(0.1, -1.0) == 0.0  # a thread that has waited has ended
