"""What groups tell of themselves, added up."""

from __future__ import annotations

import pytest

from torchft_x.observe.view.facts import BOUNDS, NOTHING, Copy, Counted, Durations, Facts, Tally


def test_what_groups_tell_is_added_up() -> None:
    tally = Tally()
    tally.add(Facts(commits=3, steps=Counted((0, 2, 1), 0.01), reductions=Counted((3,), 0.002)))
    tally.add(Facts(commits=1, drops=2, steps=Counted((0, 0, 1), 0.004), heals=Counted((0,) * 19 + (1,), 1000.0)))
    tally.add(NOTHING)
    assert (tally.commits, tally.drops) == (4, 2)
    assert tally.steps.counts[:4] == [0, 2, 2, 0]
    assert (tally.steps.number, tally.steps.sum, tally.steps.mean) == (4, pytest.approx(0.014), pytest.approx(0.0035))
    assert tally.heals.counts[len(BOUNDS)] == 1  # what has a bucket that this side doesn't know is long
    assert Tally().heals.mean is None


def test_the_rate_of_a_copy() -> None:
    assert Copy("0:x", 300, 1000, 2.0).rate == 150.0
    assert Copy("0:x", 0, 0, 0.0).rate == 0.0


def test_a_bucket_counts_all_that_took_no_longer() -> None:
    d = Durations((0.1, 1))
    for seconds in (0.1, 0.5, 1.0, 7.0):
        d.add(seconds)
    assert d.buckets() == [("0.1", 1.0), ("1.0", 3.0), ("+Inf", 4.0)]
    assert d.sum == 8.6


def test_without_any() -> None:
    assert Durations((1,)).buckets() == [("1.0", 0.0), ("+Inf", 0.0)]
