"""Section 8 of the protocol: the shortest trace known for rules that were once left out."""

from __future__ import annotations

from tests.unit.core.scene import OURS, Scene, issued, member, of, overs, quorum
from torchft_x.core.group.machine import Group, GroupConfig
from torchft_x.core.heal import plan
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.core.messages.group import Ask, GroupVote, QuorumArrived, SessionDown, SessionUp, VoteReply
from torchft_x.core.messages.lighthouse import Hello, Issue, Join, Refuse, RevokeQuorum
from torchft_x.core.types import AttemptId, JoinReason, State


def asking() -> Group:
    """A group that has asked for its first quorum."""
    group = Group(GroupConfig(replica_id="a:1", address="x", store_address="y", library=OURS), 0.0)
    group.handle(SessionUp(), 0.0)
    assert of(Join, group.handle(Ask(1, 0, State()), 0.0))
    return group


def test_R3_a_join_does_not_outlive_its_session() -> None:
    s = Scene()
    s.hello("a:1")
    s.hello("b:1")
    s.join("a:1")
    old_session = s.sessions["a:1"]
    s.hello("a:1")  # reconnects before the close is noticed, and asks again
    s.join("a:1")
    assert issued(s.join("b:1")) == [["a:1", "b:1"]]
    # The first session's join, still in the stream, comes now. Taken as fresh it would freeze a's old state into q2.
    assert s.feed(Join(old_session, member("a:1"))) == []
    assert issued(s.join("b:1", s.committed())) == []
    assert "a:1" in s.lighthouse.undecided


def test_the_step_alone_does_not_name_a_state() -> None:
    s = Scene.started("a:1", "b:1")
    at_a = s.committed()  # a commits step 1 in q1 and is cut off
    s.exited("a:1")
    s.join("b:1", State(), JoinReason.FAILED)  # b redoes step 1 alone
    at_b = s.committed()
    s.hello("a:2", attempt_id=AttemptId(1))
    s.join("a:2", at_a)
    (issue,) = of(Issue, s.join("b:1", at_b))
    assert issue.quorum.top == at_b
    assert plan(issue.quorum, "a:2", 0).heal
    assert not plan(issue.quorum, "b:1", 0).heal


def test_R13_the_lease_is_checked_at_the_commit() -> None:
    group = asking()
    group.handle(QuorumArrived(quorum(member("a:1"))), 0.0)
    group.handle(SessionDown("cut off"), 1.0)
    (answer,) = of(VoteReply, group.handle(GroupVote(0, 7), 120.1))  # has reduced; the lease ended meanwhile
    assert not answer.commit


def test_R13_no_member_commits_when_a_new_lineage_may_begin() -> None:
    """The lease as the group counts it is over before the lighthouse takes it to be."""
    s = Scene()
    group = asking()
    s.now = 0.5  # the join travels
    first = s.start("a:1")
    group.handle(QuorumArrived(first), 0.9)  # the quorum travels
    s.close("a:1")
    s.arrive("b:1")
    while not issued(s.wait(0.1, alive=("b:1",))):
        pass
    (answer,) = of(VoteReply, group.handle(GroupVote(0, first.id), s.now))
    assert not answer.commit


def test_L1_an_expired_member_with_a_session_joins_again() -> None:
    """Its lease ended while it was cut off. It is told to ask, and nobody waits for a step it may not take."""
    s = Scene.started("a:1", "b:1", silence=SilenceLimits.all(5.0))
    s.close("a:1")
    assert len(overs(s.wait(10.0, alive=("b:1",)))) == 1
    (over,) = of(RevokeQuorum, s.hello("a:1", lease_left=0.0))
    assert over.sessions == (s.sessions["a:1"],)
    assert issued(s.join("b:1", reason=JoinReason.FAILED)) == [["b:1"]]
    s.join("a:1", reason=JoinReason.REJOINED)
    assert issued(s.join("b:1", s.committed())) == [["a:1", "b:1"]]


def test_the_clock_of_a_report_is_not_trusted_for_a_member_that_is_none() -> None:
    """Somebody who reports a quorum that it is not in vouches for nothing: it is refused."""
    s = Scene()
    (refusal,) = of(Refuse, s.feed(Hello(50, "x:1", library=OURS, quorum=quorum(member("a:1")), lease_left=100.0)))
    assert "of which it is no member" in refusal.sentence
    assert s.feed(Join(50, member("x:1"))) == []
