"""The quorum a group holds: how long it may run in it, and when it asks for more."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import member, quorum
from torchft_x.core.group.lease import HeldQuorum
from torchft_x.core.messages.lighthouse import Extend
from torchft_x.core.types import State
from torchft_x.timing import TIMING

Q = 40


def held(*, granted_through: int = 5, lease: float = 100.0, asked_at: float = 10.0) -> HeldQuorum:
    """A quorum that stands at step 4."""
    hold = HeldQuorum(0.0)
    hold.receive(quorum(member("g:1", State(4, 30)), id=Q, granted_through=granted_through, lease=lease), asked_at)
    return hold


def grant(hold: HeldQuorum, through: int, *, sent_at: float = 20.0, lease: float = 100.0, quorum_id: int = Q) -> bool:
    return hold.extend(Extend(quorum_id, through, lease, hold.number(sent_at)))


def test_without_a_quorum_nothing_may_run() -> None:
    hold = HeldQuorum(7.0)
    assert (hold.quorum_id, hold.lease_until) == (0, 7.0)
    assert not hold.usable(0.0)
    assert not hold.allows(1, 0.0, connected=False)
    assert not hold.wants_more(0, 0.0)
    assert not grant(hold, 9)


def test_the_lease_counts_from_the_sending_of_what_is_answered() -> None:
    hold = held(asked_at=10.0, lease=100.0)
    assert hold.lease_until == 110.0
    assert hold.usable(110.0)
    assert not hold.usable(110.1)
    assert grant(hold, 9, sent_at=20.0)
    assert hold.lease_until == 120.0
    assert grant(hold, 9, sent_at=30.0, lease=1.0)
    assert hold.lease_until == 120.0  # what was promised stays promised


def test_R16_with_a_session_the_grant_is_the_limit_without_one_the_lease() -> None:
    hold = held(granted_through=5)
    assert hold.allows(5, 20.0, connected=True)
    assert not hold.allows(6, 20.0, connected=True)
    assert hold.allows(6, 110.0, connected=False)
    assert not hold.allows(5, 110.1, connected=False)


def test_what_is_over_is_of_no_use_and_cannot_be_extended() -> None:
    hold = held()
    hold.over = "a member is lost"
    assert not hold.usable(20.0)
    assert not hold.wants_more(5, 109.0)
    assert not grant(hold, 9)
    assert hold.granted_through == 5


def test_a_grant_answers_one_request_about_this_quorum() -> None:
    hold = held()
    number = hold.number(20.0)
    assert not hold.extend(Extend(Q, 9, 100.0, number + 1))  # never asked
    assert not hold.extend(Extend(Q - 1, 9, 100.0, number))
    assert not hold.extend(Extend(Q, 9, 100.0, number))  # that request was answered, by whatever
    number = hold.number(21.0)
    assert hold.extend(Extend(Q, 9, 100.0, number))
    assert (hold.granted_through, hold.lease_until) == (9, 121.0)
    assert not hold.extend(Extend(Q, 99, 100.0, number))
    assert grant(hold, 7)
    assert hold.granted_through == 9  # a grant never takes steps back
    number = hold.progress(22.0)
    hold.forget_requests()  # of a session that is gone
    assert hold.wants_more(4, 119.0)  # it may ask again
    assert not hold.extend(Extend(Q, 99, 100.0, number))


@pytest.mark.parametrize(("step", "wanted"), [(4, False), (8, False), (9, True), (14, True)])
def test_more_steps_are_asked_for_when_half_of_the_last_extension_is_left(step: int, wanted: bool) -> None:
    first = held(granted_through=14)  # ten steps from 4 on
    assert first.wants_more(step, 20.0) is wanted
    grown = held(granted_through=5)
    grant(grown, 15)
    grant(grown, 25)  # ten steps from 15 on
    assert grown.wants_more(step + 11, 21.0) is wanted
    # Whoever is granted step by step asks at the boundary anyway.
    assert not held(granted_through=5).wants_more(5, 20.0)
    assert held(granted_through=6).wants_more(5, 20.0)
    promised = held()
    promised.promise(100, TIMING.promised / 20.5, 20.0)
    assert not promised.wants_more(105, 21.0)  # what is promised counts as an extension


def test_a_lease_is_renewed_when_three_quarters_are_left() -> None:
    hold = held(granted_through=5, lease=100.0, asked_at=10.0)
    assert not hold.wants_more(4, 34.9)
    assert hold.wants_more(4, 35.0)


def test_one_progress_at_a_time() -> None:
    hold = held(granted_through=14)
    number = hold.progress(20.0)
    assert not hold.wants_more(14, 21.0)
    other = hold.number(22.0)
    hold.extend(Extend(Q, 14, 100.0, other))
    assert not hold.wants_more(14, 23.0)  # that answered something else
    hold.extend(Extend(Q, 14, 100.0, number))
    assert hold.wants_more(14, 24.0)


def test_the_next_quorum_begins_anew() -> None:
    hold = held(granted_through=14)
    hold.over = "a member is lost"
    number = hold.progress(20.0)
    hold.receive(quorum(member("g:1", State(7, Q)), id=41, granted_through=17, lease=50.0), 60.0)
    assert (hold.quorum_id, hold.granted_through, hold.lease_until, hold.over) == (41, 17, 110.0, "")
    assert not hold.wants_more(11, 61.0)
    assert hold.wants_more(12, 61.0)  # half of ten steps from 7 on
    assert not hold.extend(Extend(41, 99, 500.0, number))


def test_each_quorum_has_its_own_promises() -> None:
    hold = held()
    hold.promise(5, TIMING.promised / 3.5, 20.0)
    hold.greeted(20.0)
    hold.receive(quorum(member("g:1", State(8, Q)), id=Q + 1, granted_through=9, lease=100.0), 21.0)
    hold.promise(9, TIMING.promised / 3.5, 22.0)
    assert hold.granted_through == 12


def test_a_promise_counts_from_the_hello_that_named_it() -> None:
    """One that named none comes later: it does not put the next promise off."""
    hold = held()
    hold.promise(5, TIMING.promised / 3.5, 20.0)
    hold.greeted(20.0)
    hold.greeted(20.0 + 0.9 * TIMING.promise_again)
    hold.promise(50, TIMING.promised / 3.5, 20.0 + TIMING.promise_again)
    assert hold.granted_through == 53
