"""How long a rank waits when nobody has said how long: a minute of waiting for others, not for the lighthouse itself."""

from __future__ import annotations

from torchft_x.core.group.quorum_deadline import QuorumDeadline
from torchft_x.core.lighthouse.wait_notices import WaitNotices
from torchft_x.core.messages.lighthouse import SendWaits
from torchft_x.core.quorum.rule import Wait
from torchft_x.timing import TIMING


def standing(seconds: float = 0.0) -> QuorumDeadline:
    """Return the deadline of a group with a session, whose call 1 may wait so long from time 0."""
    e = QuorumDeadline(0.0)
    e.session(True, -10.0)
    if seconds:
        e.begin(1, seconds, 0.0)
    return e


def test_a_minute_while_the_lighthouse_is_there() -> None:
    e = standing(60.0)
    assert e.expired(59.9) == []
    assert e.expired(60.0) == [1]
    e.end(1)
    assert e.expired(99.0) == []


def test_time_without_a_lighthouse_does_not_count() -> None:
    e = standing(60.0)
    assert e.expired(30.0) == []
    e.session(False, 30.0)
    assert e.expired(200.0) == []
    e.session(True, 200.0)
    assert e.expired(230.0) == []  # a second of it is the lighthouse's, to say what it waits for
    assert e.expired(231.0) == [1]
    e = standing(10.0)
    e.session(False, 4.0)  # nobody has looked since 0
    e.session(True, 100.0)
    assert e.expired(106.9) == []
    assert e.expired(107.0) == [1]


def test_it_is_not_waited_for_for_ever() -> None:
    e = standing(60.0)
    e.session(False, 30.0)
    assert e.expired(30.0 + TIMING.lighthouse_away - 0.1) == []
    assert e.expired(30.0 + TIMING.lighthouse_away) == [1]


def test_nor_does_time_in_which_it_says_what_it_waits_for() -> None:
    e = standing(60.0)
    e.wait_notice("waiting for the end of a lease", True, 1.0)
    assert e.expired(120.0) == []
    e.wait_notice("only have 1 participants", False, 120.0)
    assert e.reason == "only have 1 participants"
    assert e.expired(1000.0) == []
    e.answered(1000.0)
    assert e.expired(1058.9) == []
    assert e.expired(1059.0) == [1]


def test_nor_does_time_in_which_other_ranks_of_the_group_are_missing() -> None:
    e = standing(60.0)
    e.incomplete(True, 10.0)
    assert e.expired(500.0) == []
    e.incomplete(False, 500.0)
    assert e.expired(549.9) == []
    assert e.expired(550.0) == [1]


def test_what_was_said_before_a_new_session_or_a_quorum_means_nothing() -> None:
    e = QuorumDeadline(0.0)
    assert (e.reason, e.for_lease) == ("", False)
    e = standing()
    e.wait_notice("a lease", True, 0.0)
    assert e.for_lease
    e.answered(1.0)
    assert not e.for_lease
    e.wait_notice("a lease", True, 2.0)
    e.session(False, 3.0)
    assert not e.for_lease
    e.session(True, 4.0)
    assert e.reason == ""


def test_each_call_has_its_own_time() -> None:
    e = standing(10.0)
    e.begin(2, 10.0, 5.0)
    assert e.expired(10.0) == [1]
    assert e.expired(15.0) == [1, 2]


def test_a_pause_that_was_announced_does_not_count() -> None:
    e = standing(10.0)
    e.paused(5.0, 4.0)
    assert e.expired(6.0) == []  # asking in the middle of it takes nothing back
    assert e.expired(14.9) == []
    assert e.expired(15.0) == [1]
    e = standing(10.0)
    e.paused(50.0, 4.0)
    e.paused(0.0, 6.0)
    assert e.expired(11.9) == []
    assert e.expired(12.0) == [1]


LEASE, OTHER, THIRD = Wait("a lease", 9.0, lease=True), Wait("too few"), Wait("other too few")


def test_whoever_waits_is_told_once_and_when_the_kind_of_waiting_changes() -> None:
    w = WaitNotices()
    assert w.notify([1, 2], OTHER, 0.0) == [SendWaits((1, 2), "too few", False)]
    assert w.notify([1, 2], OTHER, 9.0) == []
    assert w.notify([1, 2, 3], LEASE, 9.1) == [SendWaits((1, 2, 3), "a lease", True)]
    assert w.notify([2, 3, 4], LEASE, 9.2) == [SendWaits((4,), "a lease", True)]
    assert w.notify([1], LEASE, 9.3) == [SendWaits((1,), "a lease", True)]  # it has asked again since


def test_another_reason_of_the_same_kind_can_wait() -> None:
    w = WaitNotices()
    w.notify([1], OTHER, 10.0)
    assert w.notify([1], THIRD, 14.9) == []
    assert w.notify([1], THIRD, 15.0) == [SendWaits((1,), "other too few", False)]
    assert w.notify([1], LEASE, 15.0) == [SendWaits((1,), "a lease", True)]
    assert w.notify([1], OTHER, 15.1) == [SendWaits((1,), "too few", False)]  # that it is no lease is said at once
    assert w.notify([1], OTHER, 15.2) == []
