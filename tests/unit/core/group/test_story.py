"""What a group says of its decisions."""

from __future__ import annotations

import pytest

from tests.unit.core.group.stage import Stage
from torchft_x.core.messages import Tick
from torchft_x.core.messages.group import CallGone, Leave, SessionDown
from torchft_x.core.messages.lighthouse import RevokeQuorum


def test_a_way_through_all_that_a_group_may_be_in() -> None:
    s = Stage()
    s.ask()
    s.now = 1.0
    s.arrive()
    s.now = 2.0
    s.feed(RevokeQuorum(7, ("h:1",), "h:1 is lost: it is silent."))
    s.vote()
    s.ask()
    s.feed(Leave())
    assert s.group.story(3.0) == [
        "3.0 s ago, SessionUp: The lighthouse has taken the group's hello.",
        "3.0 s ago, Ask of rank 0: The group asks for the next quorum at step 0 (quorum 0), as its grant is used up.",
        "2.0 s ago, QuorumArrived: The group holds quorum q1 (2 members, 2 of them up to date) through step 0, for 120 s.",
        "1.0 s ago, RevokeQuorum: The quorum in hand is over: h:1 is lost: it is silent.",
        "1.0 s ago, GroupVote: Step 0 is not committed: quorum 7 is over: h:1 is lost: it is silent.",
        "1.0 s ago, Ask of rank 0: The group asks for the next quorum at step 0 (quorum 0), as it can't go on in its quorum.",
        "1.0 s ago, Leave: g:1 is leaving the job.",
    ]


@pytest.mark.parametrize(("held", "over", "runs"), [(False, False, False), (True, False, True), (True, True, False)])
def test_a_withdrawn_join_leaves_the_group_in_what_it_holds(held: bool, over: bool, runs: bool) -> None:
    s = Stage()
    if held:
        s.ask()
        s.arrive()
    s.ask()
    if over:
        s.feed(RevokeQuorum(7, (), "over."))
    assert s.group.waiting
    s.feed(SessionDown("it is away"))
    s.feed(CallGone(s.calls))
    assert not s.group.waiting
    assert s.group._held_quorum.usable(s.now) is runs
    assert "the join is withdrawn" in s.group.story(s.now)[-1].lower()


def test_what_goes_on_in_every_step_is_no_decision() -> None:
    s = Stage()
    s.ask()
    s.arrive()
    told = s.group.story(0.0)
    assert s.vote()
    s.feed(Tick())
    assert s.group.story(0.0) == told
