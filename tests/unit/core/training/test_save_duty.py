"""Who saves, when, and where it may."""

from __future__ import annotations

import pytest

from torchft_x.core.training.save_duty import Claim, Entry, SaveDuty, SaveFailures
from torchft_x.timing import LOG_AGAIN, TIMING


def saved(duty: SaveDuty, indexes: dict[int, int | None], steps: range) -> list[int]:
    """`indexes`: from which step on."""
    index: int | None = None
    result = []
    for step in steps:
        index = indexes.get(step, index)
        if duty.committed(step, index):
            result.append(step)
    return result


@pytest.mark.parametrize(
    ("every", "indexes", "steps", "saves"),
    [
        (10, {1: 0}, 30, [10, 20, 30]),
        (1, {1: 0}, 3, [1, 2, 3]),
        (10, {1: 1}, 30, []),  # not the first group
        (10, {1: None}, 30, []),
        # Who becomes the first takes over what may have been in hand at once, and only then.
        (10, {1: 1, 12: 0}, 30, [12, 20, 30]),
        (10, {1: 1, 5: 0}, 30, [10, 20, 30]),
        (10, {1: 1, 10: 0}, 20, [10, 20]),
        # A first group that comes and goes costs one save for each due step.
        (10, {1: 1, 12: 0, 13: 1, 14: 0, 15: 1, 16: 0, 17: 1, 21: 0, 22: 1, 23: 0}, 27, [12, 21]),
        # A healing group has no index and takes over like the others.
        (10, {1: None, 9: 0}, 20, [10, 20]),
        (10, {1: 1, 10: None, 11: 0}, 20, [11, 20]),
    ],
)
def test_the_first_group_saves_at_each_due_step(
    every: int, indexes: dict[int, int | None], steps: int, saves: list[int]
) -> None:
    assert saved(SaveDuty(every), indexes, range(1, steps + 1)) == saves


OTHER = Entry("other", 3, False)


def test_an_empty_url_and_ones_own_may_be_written_to() -> None:
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
    claim = Claim("us")
    claim.seen(OTHER, 100.0)
    assert claim.seen(OTHER._replace(over=True), 105.0) == ""
    assert claim.ours  # the other one has left
    claim = Claim("us")
    claim.seen(Entry("us", 1, False), 100.0)
    assert "has begun" in claim.seen(OTHER, 1000.0)


def test_failing_saves_are_told_once_a_minute() -> None:
    failures = SaveFailures()
    assert failures.failed("no space.", 5.0) == "a checkpoint was not saved; training goes on: no space."
    assert failures.failed("no space.", 5.0 + LOG_AGAIN - 1) == ""
    assert "not saved (3 in a row); tr" in failures.failed("no space.", 5.0 + LOG_AGAIN)
    failures.worked()
    assert "in a row" not in failures.failed("no space.", 1000.0)
