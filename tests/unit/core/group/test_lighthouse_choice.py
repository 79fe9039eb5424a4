"""Which of several lighthouses a group tries."""

from __future__ import annotations

from torchft_x.core.group.lighthouse_choice import FailoverPolicy, pause
from torchft_x.timing import TIMING


def test_a_lighthouse_that_was_there_is_given_a_moment_to_come_back() -> None:
    w = FailoverPolicy(2, comes_back=3.0)
    w.up()
    w.ended(10.0)
    w.failed(12.9)
    assert w.at == 0
    w.failed(13.0)
    assert w.at == 1


def test_where_a_session_stands_again_what_was_before_it_counts_no_more() -> None:
    """Whoever is there and doesn't answer a hello later on is not one that has just gone."""
    w = FailoverPolicy(2, comes_back=3.0)
    w.up()
    w.ended(0.0)
    w.up()
    w.failed(1.0)
    assert w.at == 1


def test_pauses_double_and_are_short_in_the_first_seconds() -> None:
    taken, away, last = [], 0.0, None
    while away < TIMING.reconnect_near_for + 3.0:
        last = pause(last, away)
        taken.append((away, last))
        away += last
    pauses = [seconds for _, seconds in taken]
    assert (pauses[0], pauses[1]) == (TIMING.reconnect_first, 2 * TIMING.reconnect_first)
    assert all(seconds <= TIMING.reconnect_near for at, seconds in taken if at < TIMING.reconnect_near_for)
    assert pauses[-1] == TIMING.reconnect_last
    assert pause(None, 100.0) == TIMING.reconnect_first  # a session stood until now


def test_one_after_the_other_is_tried_and_what_can_not_be_reached_is_left_at_once() -> None:
    for lighthouses, expected in ((3, [0, 1, 2, 0, 1]), (2, [0, 1, 0, 1, 0]), (1, [0, 0, 0, 0, 0])):
        w, tried = FailoverPolicy(lighthouses, comes_back=3.0), [0]
        for n in range(4):
            w.failed(n / 10)
            tried.append(w.at)
        assert tried == expected
