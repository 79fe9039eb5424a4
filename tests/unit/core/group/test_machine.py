"""The group's machine: asks become one join, the quorum goes to every rank, the vote knows when it is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.group.stage import NAME, Stage, joins
from tests.unit.core.scene import OURS, member, of, quorum
from torchft_x.core.fingerprint import Fingerprint, describe
from torchft_x.core.group.machine import GroupConfig
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages import lighthouse as lm
from torchft_x.core.messages.group import (
    CallGone,
    FailCalls,
    GroupEvent,
    Leave,
    PongArrived,
    PushEnd,
    QuorumArrived,
    QuorumReply,
    SessionDown,
    SessionUp,
    VoteReply,
)
from torchft_x.core.messages.lighthouse import Fence, Refuse, RevokeQuorum
from torchft_x.core.types import AttemptId, JoinReason, State
from torchft_x.errors import ConfigError

A, B = describe("model", "a"), describe("data set", "b")
OVER = RevokeQuorum(7, ("h:1",), "h:1 is lost")


class TestAsking:
    def test_the_join_leaves_when_every_rank_has_asked_and_the_quorum_goes_to_every_rank(self) -> None:
        s = Stage(2)
        assert s.ask(1) == []
        assert s.group.waiting == "group rank 0 has not asked for a quorum yet."
        (join,) = joins(s.ask(0))
        assert join.member == member(NAME, address="http://g", store_address="g-store", world_size=2)
        assert join.reason is JoinReason.BOUNDARY
        assert s.arrive() == [QuorumReply(s.quorum(), 120.0, calls=(2, 1))]
        assert s.group.waiting == ""

    def test_what_is_declared_travels_once_per_session(self) -> None:
        s = Stage()
        declared = Fingerprint((A,))
        assert joins(s.ask(traits=declared))[0].traits == declared
        s.arrive()
        (second,) = joins(s.ask(step=1))
        assert second.traits is None
        s.feed(SessionDown("gone"))
        assert joins(s.feed(SessionUp())) == [replace(second, traits=declared)]
        s.arrive(8)
        s.feed(SessionDown("gone"))  # between two joins
        s.feed(SessionUp())
        assert joins(s.ask(step=2))[0].traits == declared
        assert joins(Stage().ask(traits=Fingerprint()))[0].traits is None  # it declares nothing

    def test_what_is_declared_later_is_sent_with_the_rest(self) -> None:
        s = Stage(2)
        s.ask(0, traits=Fingerprint((A,)))
        assert joins(s.ask(1, traits=Fingerprint((A,))))[0].traits == Fingerprint((A,))
        s.arrive()
        s.ask(0, step=1, traits=Fingerprint((A, B)))
        assert joins(s.ask(1, step=1))[0].traits == Fingerprint((A, B))

    def test_I2_ranks_at_different_states_hold_none(self) -> None:
        s = Stage(2)
        s.ask(0, step=5)
        m = joins(s.ask(1, step=4))[0].member
        assert (m.state, m.torn) == (State(4, 7), True)

    def test_a_rank_that_asks_again_replaces_its_call(self) -> None:
        s = Stage(2)
        s.ask(0)
        (told,) = s.ask(0)
        assert told == FailCalls((1,), "group rank 0 has asked for a quorum again, from another call.", False)
        assert joins(s.ask(1))
        s.feed(CallGone(2))
        assert s.ask(0) == []  # it says the same again, so that no second join is sent
        assert of(QuorumReply, s.arrive())[0].calls == (4, 3)

    def test_R3_one_join_at_a_time(self) -> None:
        """The first may be answered while the second is under way, which would then stand for the state before."""
        s = Stage().training()
        s.vote()
        assert joins(s.ask(step=1))[0].reason is JoinReason.BOUNDARY
        s.feed(OVER)
        s.feed(CallGone(2))
        assert s.ask(step=1) == []
        s.feed(SessionDown("cut"))
        (join,) = joins(s.feed(SessionUp()))
        assert join.reason is JoinReason.REJOINED

    def test_a_rank_outside_the_group_is_refused(self) -> None:
        (told,) = Stage(2).ask(2)
        assert told == FailCalls((1,), "group rank 2 is outside this group of 2 ranks.", False)

    def test_checkpoint_metadata_is_kept_per_rank(self) -> None:
        s = Stage(2)
        assert s.group.metadata(1) is None
        s.ask(1, checkpoint_metadata="http://here")
        assert s.group.metadata(1) == "http://here"
        assert s.group.metadata(0) is None


class TestSessions:
    def test_R3_a_join_waits_for_a_session_and_is_sent_again_on_every_new_one_until_it_is_answered(self) -> None:
        s = Stage(connected=False)
        assert s.ask() == []
        assert s.group.waiting == "the lighthouse has not answered the join: no session to the lighthouse yet."
        first = joins(s.feed(SessionUp()))
        assert len(first) == 1
        assert s.group.waiting == "the lighthouse has not answered the join; its status says what it waits for."
        assert s.feed(SessionDown("it was refused")) == []
        assert s.group.waiting == "the lighthouse has not answered the join: it was refused."
        assert joins(s.feed(SessionUp())) == first
        s.arrive()
        s.feed(SessionDown("again"))
        assert s.feed(SessionUp()) == []

    @pytest.mark.parametrize("why", ["no join", "not sent", "ended"])
    def test_R3_a_quorum_that_answers_no_join_is_dropped(self, why: str) -> None:
        s = Stage(connected=why != "not sent")
        if why != "no join":
            s.ask()
        if why == "ended":
            s.feed(Fence("g:2"))
        (note,) = of(Note, s.arrive())
        assert note.event == "stale_quorum"
        assert s.group.quorum is None

    @pytest.mark.parametrize("stale", [6, 7])
    def test_I3_older_ids_are_dropped(self, stale: int) -> None:
        s = Stage().training()
        s.ask()
        assert of(Note, s.arrive(stale))
        assert s.group.quorum == s.quorum(7)
        assert of(QuorumReply, s.arrive(8))

    def test_a_quorum_without_us_is_dropped(self) -> None:
        s = Stage()
        s.ask()
        assert of(Note, s.feed(QuorumArrived(quorum(member("h:1")))))
        assert s.group.quorum is None

    def test_the_lease_counts_from_the_newest_ping_that_was_answered_while_it_waited(self) -> None:
        """A group that waited for longer than a lease dropped its first step: the lease counted from the sending of
        its join."""
        s = Stage()
        s.feed(PongArrived(-1.0))  # nothing is asked yet
        s.now = 3.0
        s.ask()
        s.feed(PongArrived(2.0))  # sent before the join
        s.now = 200.0
        s.feed(PongArrived(198.0))
        s.now = 210.0
        assert of(QuorumReply, s.arrive())[0].lease_until == 318.0
        s.vote()
        assert of(VoteReply, s.feed(Tick())) == []
        assert s.group.state == State(1, 7)
        s.feed(PongArrived(209.0))
        assert s.group.lease_until == 318.0  # a grant extends it, nothing else

    def test_the_lease_counts_from_the_sending_on_the_session_that_answered(self) -> None:
        s = Stage()
        s.ask()
        s.feed(SessionDown("x"))
        s.now = 30.0
        s.feed(SessionUp())
        s.now = 31.0
        s.arrive()
        assert s.group.lease_until == 150.0

    def test_hello_tells_the_quorum_in_hand_and_the_rest_of_its_lease(self) -> None:
        s = Stage(runs_on=True)
        first = s.group.hello(0.0)
        assert (first.quorum, first.lease_left, first.state, first.granted_through) == (None, 0.0, State(), 0)
        s.ask(step=4)
        held = quorum(member(NAME, State(4, 7)), member("h:1", State(4, 7)), id=8, granted_through=9)
        s.feed(QuorumArrived(held))
        s.vote(step=4)
        s.now = 20.0
        hello = s.group.hello(s.now)
        assert (hello.replica_id, hello.address, hello.library, hello.runs_on) == (NAME, "http://g", OURS, True)
        assert (hello.attempt_id, hello.boot_id) == (AttemptId(2, 5.0, "t"), "boot")
        assert (hello.quorum, hello.lease_left, hello.state) == (held, 100.0, State(5, 8))
        assert hello.granted_through == 9
        s.now = 500.0
        assert s.group.hello(s.now).lease_left == 0.0

    @pytest.mark.parametrize("reason", [JoinReason.FAILED, JoinReason.NEW, JoinReason.HEALED])
    def test_what_went_wrong_is_said_again_on_the_next_session(self, reason: JoinReason) -> None:
        s = Stage().training()
        s.ask(reason=reason)
        s.now = 500.0  # the lease has ended, too
        assert joins(s.feed(SessionUp()))[0].reason is reason


class TestGivingUp:
    """A rank's call may end before the quorum comes. The join can't be taken back."""

    def asked(self) -> Stage:
        """Return a group whose only call has ended since it asked."""
        s = Stage()
        s.ask()
        s.feed(CallGone(1))
        return s

    def test_the_quorum_waits_for_the_rank_to_ask_again(self) -> None:
        s = self.asked()
        assert s.arrive() == []
        s.feed(SessionDown("gone"))
        assert s.ask() == [QuorumReply(s.quorum(), 120.0, calls=(2,))]

    def test_a_rank_that_stands_elsewhere_by_then_asks_for_another(self) -> None:
        s = self.asked()
        s.arrive()
        (join,) = joins(s.ask(state=State(5, 2)))  # it has loaded a checkpoint
        assert join.member.state == State(5, 2)

    def test_before_the_join_nothing_is_owed(self) -> None:
        s = Stage(2).training()
        s.ask(0, reason=JoinReason.FAILED)
        s.feed(CallGone(3))
        assert s.ask(0, reason=JoinReason.FAILED) == []  # quorum 7 is no answer to a failure in it
        assert joins(s.ask(1))[0].reason is JoinReason.FAILED

    def test_the_lease_of_the_next_join_counts_from_its_own_sending(self) -> None:
        s = self.asked()
        s.feed(SessionDown("gone"))
        s.now = 50.0
        s.feed(SessionUp())
        s.now = 60.0
        s.ask()
        assert of(QuorumReply, s.arrive())[0].lease_until == 180.0
        s.now = 70.0
        s.ask(reason=JoinReason.FAILED)
        assert of(QuorumReply, s.arrive(8))[0].lease_until == 190.0

    def test_the_quorum_of_before_is_no_answer(self) -> None:
        s = Stage().training()
        s.vote()
        s.ask(step=1)
        s.feed(CallGone(2))
        assert s.ask(step=1) == []  # still waits for the next
        assert of(QuorumReply, s.arrive(8))[0].calls == (3,)

    @pytest.mark.parametrize("why", ["over", "lease"])
    def test_a_quorum_that_ended_meanwhile_is_no_answer(self, why: str) -> None:
        s = self.asked()
        s.arrive()
        if why == "over":
            s.feed(OVER)
        else:
            s.now = 121.0
        (join,) = joins(s.ask())
        assert join.reason is JoinReason.REJOINED

    @pytest.mark.parametrize("events", [[CallGone(2), SessionDown("away")], [SessionDown("away"), CallGone(2)]])
    def test_without_a_session_a_join_that_nobody_waits_for_is_no_more(self, events: list[GroupEvent]) -> None:
        """R16: the lighthouse is away and the quorum in hand stands, so its step may still be committed."""
        s = Stage().training()
        s.ask()
        for event in events:
            s.feed(event)
        assert of(VoteReply, s.vote())[0].commit
        assert s.feed(SessionUp()) == []  # the old state is not sent again
        assert joins(s.ask(step=1))[0].member.state == State(1, 7)

    def test_with_a_session_it_stands(self) -> None:
        s = Stage().training()
        s.ask()
        s.feed(CallGone(2))
        assert not of(VoteReply, s.vote())[0].commit


class TestVoting:
    def test_all_ranks_say_yes(self) -> None:
        s = Stage(2).training()
        assert s.vote() == [VoteReply(True)]
        assert s.group.state == State(1, 7)
        s.feed(OVER)  # after the commit it changes nothing
        assert s.group.state == State(1, 7)
        s.ask(0, step=1)
        assert joins(s.ask(1, step=1))[0].reason is JoinReason.REJOINED

    def test_I2_a_healer_that_commits_stands_one_above_the_top(self) -> None:
        s = Stage()
        s.ask()
        s.feed(QuorumArrived(quorum(member(NAME), member("h:1", State(8, 4)))))
        s.vote(step=8)
        assert s.group.state == State(9, 7)

    def test_a_rank_that_asks_instead_of_voting_releases_the_others(self) -> None:
        why = "group rank 1 asked for a new quorum instead of voting."
        s = Stage(2).training()
        s.peer_votes(0)
        assert VoteReply(False, why, calls=(3,)) in s.ask(1, reason=JoinReason.FAILED)
        s = Stage(2).training()
        s.ask(1, reason=JoinReason.FAILED)
        assert s.peer_votes(0) == [VoteReply(False, why, calls=(4,))]

    def test_a_peers_client_that_never_had_a_quorum_has_no_lease_to_lose(self) -> None:
        s = Stage()
        s.now = 500.0
        assert s.peer_votes() == [VoteReply(True, "", calls=(1,))]


class TestOver:
    def test_an_over_is_heard_once_and_answers_those_who_vote(self) -> None:
        s = Stage(2).training()
        s.peer_votes(0)
        push, answer = s.feed(OVER)
        assert push == OVER
        assert answer == VoteReply(False, "quorum 7 is over: h:1 is lost", calls=(3,))
        assert s.feed(OVER) == []
        assert s.peer_votes(1) == [VoteReply(False, "quorum 7 is over: h:1 is lost", calls=(4,))]
        assert s.vote() == [VoteReply(False, "quorum 7 is over: h:1 is lost")]

    @pytest.mark.parametrize("other", [6, 8])
    def test_of_another_quorum_it_is_stale(self, other: int) -> None:
        s = Stage().training()
        assert s.feed(RevokeQuorum(other, (), "x")) == []
        assert of(VoteReply, s.vote())[0].commit
        assert Stage().feed(RevokeQuorum(other, (), "x")) == []


class TestEnds:
    def test_R2_fenced(self) -> None:
        s = Stage(2).training()
        s.ask(0)
        s.ask(1)
        effects = s.feed(Fence("g:2"))
        sentence = "g:1 must stop: g:2, a newer attempt of its group, is running."
        assert PushEnd(sentence, True) in effects
        assert FailCalls((3, 4), sentence, False) in effects
        assert s.group.waiting == ""

    def test_refused_while_asking_every_rank_is_told_at_once(self) -> None:
        s = Stage(2)
        s.ask(0)
        s.ask(1)
        effects = s.feed(Refuse("your model differs."))
        assert effects == [FailCalls((1, 2), "your model differs.", False), PushEnd("your model differs.", False)]
        assert s.ask(0) == [FailCalls((3,), "your model differs.", False)]
        assert s.vote() == [VoteReply(False, "your model differs.")]
        assert s.feed(Refuse("again")) == []
        assert s.feed(SessionUp()) == []  # nothing is asked any more
        s = Stage(2).training()
        s.peer_votes(0)
        assert VoteReply(False, "no.", calls=(3,)) in s.feed(Refuse("no."))

    @pytest.mark.parametrize("asking", [False, True])
    def test_leaving(self, asking: bool) -> None:
        assert Stage(connected=False).feed(Leave()) == []  # without a session it is silent
        s = Stage().training()
        s.vote()
        told = [FailCalls((2,), "g:1 is leaving the job.", False)]
        if asking:
            s.ask(step=1)
        assert s.feed(Leave()) == [lm.Leave(0, State(1, 7)), *(told if asking else [])]
        assert asking or s.ask() == told
        assert s.feed(Leave()) == []
        s.feed(SessionDown("x"))
        assert s.feed(SessionUp()) == []  # no join any more


@pytest.mark.parametrize("keeps", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("still", [True, False])
def test_I2_all_ranks_reduce_again_or_none_does(keeps: tuple[bool, bool], still: bool) -> None:
    s = Stage(2)
    s.ask(0, keeps=keeps[0])
    s.ask(1, keeps=keeps[1])
    s.feed(CallGone(2))
    (answer,) = of(QuorumReply, s.arrive())
    assert answer.again is all(keeps)
    (answer,) = of(QuorumReply, s.ask(1, keeps=still))
    assert answer.again is (all(keeps) and still)


def test_without_runs_on_it_asks_at_every_step_and_waits_for_the_answer() -> None:
    s = Stage().training(granted_through=50)
    s.now = 100.0
    assert s.feed(Tick()) == []
    s.vote()
    (join,) = joins(s.ask(step=1))
    assert (join.number, join.step_seconds) == (0, 0.0)
    assert s.feed(SessionDown("gone")) == []


@pytest.mark.parametrize(("field", "value"), [("world_size", 0), ("replica_id", "")])
def test_a_bad_setting_is_named(field: str, value: Any) -> None:
    values = {"replica_id": NAME, "address": "x", "store_address": "y", field: value}
    with pytest.raises(ConfigError, match=field):
        GroupConfig(**values)


class TestGoesOnAlone:
    """R16: whether a silent lighthouse is all that keeps it."""

    def asking(self, *, healing: bool = False, runs_on: bool = True, **fields: Any) -> Stage:
        """Return a group at the end of its grant, which asks at step 5 of a quorum that began at 4."""
        s = Stage(runs_on=runs_on)
        s.ask(state=State(4, 3))
        other = State(2, 1) if healing else State(4, 3)
        held = quorum(member(NAME, State(4, 3)), member("h:1", other), id=7, granted_through=5, lease=30.0)
        s.feed(QuorumArrived(held))
        s.vote(step=4)
        assert not s.group.goes_on_alone(0.5)  # it computes
        s.now = 1.0
        assert joins(s.ask(step=5, **fields))
        return s

    def test_while_its_join_only_wants_more_steps(self) -> None:
        s = self.asking()
        assert s.group.goes_on_alone(1.5)
        assert not s.group.goes_on_alone(30.5)  # the lease has ended
        (answer,) = of(QuorumReply, s.feed(SessionDown("silent")))
        assert answer.calls == (2,)
        assert not s.group.goes_on_alone(2.5)

    @pytest.mark.parametrize(
        "fields",
        [
            {"reason": JoinReason.FAILED},
            {"reason": JoinReason.NEW},
            {"torn": True},
            {"commit_failures": 1},
            {"healing": True},  # where each step needs the lighthouse
            {"runs_on": False},
        ],
    )
    def test_not_if_it_needs_the_lighthouse(self, fields: dict[str, Any]) -> None:
        s = self.asking(**fields)
        assert not s.group.goes_on_alone(1.5)
        assert not of(QuorumReply, s.feed(SessionDown("silent")))
