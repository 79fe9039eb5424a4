"""The phases of a group, and what it says of how it came there."""

from __future__ import annotations

import pytest

from tests.unit.core.group.stage import Stage
from torchft_x.core.group.phase import TRANSITIONS, GroupPhase, Progression
from torchft_x.core.messages import Tick
from torchft_x.core.messages.group import CallGone, Leave, SessionDown
from torchft_x.core.messages.lighthouse import RevokeQuorum


def phase(s: Stage) -> GroupPhase:
    return s.group._progression.phase


def test_a_way_through_all_of_them() -> None:
    s = Stage()
    assert phase(s) is GroupPhase.IDLE
    s.ask()
    assert phase(s) is GroupPhase.JOINING
    s.now = 1.0
    s.arrive()
    assert phase(s) is GroupPhase.IN_QUORUM
    s.now = 2.0
    s.feed(RevokeQuorum(7, ("h:1",), "h:1 is lost: it is silent."))
    assert phase(s) is GroupPhase.REVOKED
    s.vote()
    s.ask()
    assert phase(s) is GroupPhase.JOINING
    s.feed(Leave())
    assert phase(s) is GroupPhase.ENDED
    assert s.group.story(3.0) == [
        "3.0 s ago, SessionUp: The lighthouse has taken the group's hello.",
        "3.0 s ago, Ask of rank 0: The group asks for the next quorum at step 0 (quorum 0), as its grant is used up.",
        "2.0 s ago, QuorumArrived: The group holds quorum q1 (2 members, 2 of them up to date) through step 0, for 120 s.",
        "1.0 s ago, RevokeQuorum: The quorum in hand is over: h:1 is lost: it is silent.",
        "1.0 s ago, GroupVote: Step 0 is not committed: quorum 7 is over: h:1 is lost: it is silent.",
        "1.0 s ago, Ask of rank 0: The group asks for the next quorum at step 0 (quorum 0), as it can't go on in its quorum.",
        "1.0 s ago, Leave: g:1 is leaving the job.",
    ]


@pytest.mark.parametrize(
    ("held", "over", "back"),
    [(False, False, GroupPhase.IDLE), (True, False, GroupPhase.IN_QUORUM), (True, True, GroupPhase.REVOKED)],
)
def test_a_withdrawn_join_leaves_the_group_in_what_it_holds(held: bool, over: bool, back: GroupPhase) -> None:
    s = Stage()
    if held:
        s.ask()
        s.arrive()
    s.ask()
    if over:
        s.feed(RevokeQuorum(7, (), "over."))
    assert phase(s) is GroupPhase.JOINING
    s.feed(SessionDown("it is away"))
    s.feed(CallGone(s.calls))
    assert phase(s) is back
    assert "the join is withdrawn" in s.group.story(s.now)[-1].lower()


def test_what_goes_on_in_every_step_is_no_decision() -> None:
    s = Stage()
    s.ask()
    s.arrive()
    told = s.group.story(0.0)
    assert s.vote()
    s.feed(Tick())
    assert s.group.story(0.0) == told


def test_there_is_no_other_way() -> None:
    for before in GroupPhase:
        for after in set(GroupPhase) - {after for start, after in TRANSITIONS if start is before}:
            at = Progression(0.0)
            at.phase = before
            with pytest.raises(AssertionError, match="no way from"):
                at.enter(after, "why")
