"""How long a rank waits for a quorum: while the lighthouse says what it waits for, and by its user's limit."""

from __future__ import annotations

import pytest

from torchft_x.core.group.quorum_deadline import QuorumDeadline
from torchft_x.timing import TIMING


def standing(silence: float = 60.0) -> QuorumDeadline:
    """Return the deadline of a group with a session, whose call 1 may wait for so long without a word, from time 0."""
    e = QuorumDeadline(0.0)
    e.session(True, -10.0)
    e.begin(1, silence, 0.0)
    return e


def gives_up(e: QuorumDeadline, at: float, *calls: int, incomplete: bool = False) -> None:
    """Assert that these calls are given up at this time, and not a moment before."""
    assert e.expired(incomplete, at - 0.1) == []
    assert e.expired(incomplete, at) == list(calls or (1,))


def test_a_minute_in_which_nothing_is_heard() -> None:
    e = standing()
    gives_up(e, 60.0)
    e.end(1)
    assert e.expired(False, 99.0) == []


def test_each_word_of_the_lighthouse_begins_the_minute_anew() -> None:
    e = standing()
    for now in (59.0, 118.0, 1000.0):
        e.waits("only have 1 participants", False, now)
        assert e.expired(False, now + 59.0) == []
    assert e.reason == "only have 1 participants"
    gives_up(e, 1060.0)


def test_without_a_session_there_are_three_minutes_and_with_the_next_one_the_minute_begins_anew() -> None:
    e = standing()
    e.waits("a lease", False, 20.0)
    e.session(False, 30.0)
    assert e.reason == ""
    e.session(False, 100.0)  # it is away as before
    gives_up(e, 30.0 + TIMING.lighthouse_away)
    e.session(True, 300.0)
    gives_up(e, 360.0)


def test_who_asks_while_the_lighthouse_is_away_waits_three_minutes_too() -> None:
    e = standing()
    e.session(False, 10.0)
    e.begin(2, 60.0, 100.0)
    gives_up(e, 10.0 + TIMING.lighthouse_away)
    e.end(1)
    gives_up(e, 100.0 + TIMING.lighthouse_away, 2)


def test_other_ranks_of_the_group_that_are_missing_are_waited_for() -> None:
    e = standing()
    assert e.expired(True, 500.0) == []
    gives_up(e, 560.0)


def test_each_call_has_its_own_time() -> None:
    e = standing(10.0)
    e.begin(2, 10.0, 5.0)
    assert e.expired(False, 10.0) == [1]
    assert e.expired(False, 15.0) == [1, 2]


@pytest.mark.parametrize(("pauses", "left"), [(True, 6.0), (False, 0.0)])
def test_a_limit_of_the_user_counts_from_the_last_second_of_a_pause(pauses: bool, left: float) -> None:
    e = standing()
    assert e.prolonged(10.0, 0.0) == 0.0
    e.waits("b pauses", pauses, 100.0)
    e.waits("b is awaited", False, 101.0)
    assert e.prolonged(10.0, 104.0) == left
    assert e.prolonged(10.0, 110.0) == 0.0
