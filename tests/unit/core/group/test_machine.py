"""The group's machine: asks become one join, the quorum goes to every rank, the vote knows when it is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.scene import OURS, member, of, quorum
from torchft_x.core.fingerprint import Fingerprint, describe
from torchft_x.core.group.machine import Group, GroupConfig
from torchft_x.core.messages.common import Note, Tick
from torchft_x.core.messages.group import (
    AnswerQuorum,
    AnswerVote,
    Ask,
    CallGone,
    FailCalls,
    FencedArrived,
    GroupEffect,
    GroupEvent,
    Leave,
    PongArrived,
    PushEnd,
    PushRevoked,
    QuorumArrived,
    QuorumRevoked,
    RefusedArrived,
    SendJoin,
    SendLeave,
    SessionDown,
    SessionUp,
    Vote,
)
from torchft_x.core.types import JoinReason, Life, Quorum, State
from torchft_x.errors import ConfigError

NAME = "g:1"


class Stage:
    """A group with calls numbered 1, 2, ..."""

    def __init__(self, world_size: int = 1, *, connected: bool = True) -> None:
        config = GroupConfig(
            replica_id=NAME,
            address="http://g",
            store_address="g-store",
            world_size=world_size,
            library=OURS,
            life=Life(2, 5.0, "t"),
            boot_id="boot",
        )
        self.now = 0.0
        self.group = Group(config, self.now)
        self.calls = 0
        if connected:
            assert self.feed(SessionUp()) == []

    def feed(self, event: GroupEvent) -> list[GroupEffect]:
        return self.group.handle(event, self.now)

    def ask(self, rank: int = 0, step: int = 0, **fields: Any) -> list[GroupEffect]:
        self.calls += 1
        state = fields.pop("state", State(step, 3 if step else 0))
        return self.feed(Ask(self.calls, rank, state, **fields))

    def vote(self, rank: int = 0, ok: bool = True, *, step: int = 0, quorum_id: int | None = None) -> list[GroupEffect]:
        self.calls += 1
        held = self.group.quorum
        in_hand = held.id if held else 0
        return self.feed(Vote(self.calls, rank, step, in_hand if quorum_id is None else quorum_id, ok))

    def arrive(self, id: int = 7, step: int = 0, **fields: Any) -> list[GroupEffect]:
        return self.feed(QuorumArrived(self.quorum(id, step, **fields)))

    def quorum(self, id: int = 7, step: int = 0, **fields: Any) -> Quorum:
        return quorum(member(NAME, State(step, 3 if step else 0)), member("h:1"), id=id, **fields)

    def training(self) -> Stage:
        """Stands in quorum 7, all ranks answered at time 0."""
        for rank in range(self.group._config.world_size):
            self.ask(rank)
        assert of(AnswerQuorum, self.arrive())
        return self


def joins(effects: list[GroupEffect]) -> list[SendJoin]:
    return of(SendJoin, effects)


class TestAsking:
    def test_the_join_leaves_when_every_rank_has_asked(self) -> None:
        s = Stage(2)
        assert s.ask(1) == []
        assert s.group.waiting == "group rank 0 has not asked for a quorum yet."
        (join,) = joins(s.ask(0))
        assert join.member == member(NAME, address="http://g", store_address="g-store", world_size=2)
        assert join.reason is JoinReason.BOUNDARY
        assert "the lighthouse has not answered" in s.group.waiting

    def test_the_quorum_goes_to_every_rank(self) -> None:
        s = Stage(2)
        s.ask(1)
        s.ask(0)
        assert s.arrive() == [AnswerQuorum((2, 1), s.quorum(), 120.0)]
        assert s.group.waiting == ""

    def test_what_is_declared_travels_once_per_session(self) -> None:
        s = Stage()
        a = Fingerprint((describe("model", "a"),))
        (first,) = joins(s.ask(traits=a))
        assert first.traits == a
        s.arrive()
        (second,) = joins(s.ask(step=1))
        assert second.traits is None
        s.feed(SessionDown("gone"))
        assert joins(s.feed(SessionUp())) == [replace(second, traits=a)]

    def test_what_is_declared_reaches_a_session_that_came_between_two_joins(self) -> None:
        s = Stage()
        a = Fingerprint((describe("model", "a"),))
        s.ask(traits=a)
        s.arrive()
        s.feed(SessionDown("gone"))
        s.feed(SessionUp())
        assert joins(s.ask(step=1))[0].traits == a

    def test_what_is_declared_later_is_sent_with_the_rest(self) -> None:
        s = Stage(2)
        a, b = describe("model", "a"), describe("data set", "b")
        s.ask(0, traits=Fingerprint((a,)))
        assert joins(s.ask(1, traits=Fingerprint((a,))))[0].traits == Fingerprint((a,))
        s.arrive()
        s.ask(0, step=1, traits=Fingerprint((a, b)))
        assert joins(s.ask(1, step=1))[0].traits == Fingerprint((a, b))

    def test_I2_ranks_at_different_states_hold_none(self) -> None:
        s = Stage(2)
        s.ask(0, step=5)
        m = joins(s.ask(1, step=4))[0].member
        assert (m.state, m.torn) == (State(4, 3), True)

    def test_a_rank_that_asks_again_replaces_its_call(self) -> None:
        s = Stage(2)
        s.ask(0)
        (told,) = s.ask(0)
        assert told == FailCalls((1,), "group rank 0 has asked for a quorum again, from another call.", False)
        s.ask(1)
        assert of(AnswerQuorum, s.arrive())[0].calls == (2, 3)

    def test_an_ask_that_says_the_same_again_sends_no_second_join(self) -> None:
        s = Stage()
        assert joins(s.ask())
        s.feed(CallGone(1))
        assert s.ask() == []
        assert of(AnswerQuorum, s.arrive())[0].calls == (2,)

    def test_R3_one_join_at_a_time(self) -> None:
        """The first may be answered while the second is under way, which would then stand for the state before."""
        s = Stage().training()
        s.vote()
        assert joins(s.ask(state=State(1, 7)))[0].reason is JoinReason.BOUNDARY
        s.feed(QuorumRevoked(7, ("h:1",), "h:1 is lost"))
        s.feed(CallGone(3))
        assert s.ask(state=State(1, 7)) == []
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
    def test_R3_a_join_waits_for_a_session(self) -> None:
        s = Stage(connected=False)
        assert s.ask() == []
        assert "no session to the lighthouse yet" in s.group.waiting
        assert joins(s.feed(SessionUp()))

    def test_R4_an_unanswered_join_is_sent_again_on_every_new_session(self) -> None:
        s = Stage()
        first = joins(s.ask())
        assert s.feed(SessionDown("connection reset")) == []
        assert "connection reset" in s.group.waiting
        assert joins(s.feed(SessionUp())) == first
        s.arrive()
        s.feed(SessionDown("again"))
        assert s.feed(SessionUp()) == []  # it was answered

    def test_R3_a_quorum_that_answers_no_join_is_dropped(self) -> None:
        s = Stage()
        (note,) = s.arrive()
        assert isinstance(note, Note)
        assert s.group.quorum is None

    def test_R3_a_quorum_for_a_join_that_was_not_sent_yet_is_dropped(self) -> None:
        s = Stage(connected=False)
        s.ask()
        assert of(Note, s.arrive())
        assert s.group.quorum is None

    @pytest.mark.parametrize("stale", [6, 7])
    def test_I3_older_ids_are_dropped(self, stale: int) -> None:
        s = Stage().training()
        s.ask()
        assert of(Note, s.arrive(stale))
        assert s.group.quorum == s.quorum(7)
        assert of(AnswerQuorum, s.arrive(8))

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
        assert of(AnswerQuorum, s.arrive())[0].lease_until == 318.0
        s.vote()
        assert of(AnswerVote, s.feed(Tick())) == []
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
        s = Stage().training()
        s.vote()
        s.now = 20.0
        hello = s.group.hello(s.now)
        assert (hello.replica_id, hello.life, hello.boot_id) == (NAME, Life(2, 5.0, "t"), "boot")
        assert (hello.quorum, hello.lease_left, hello.state) == (s.quorum(), 100.0, State(1, 7))
        s.now = 500.0
        assert s.group.hello(s.now).lease_left == 0.0

    def test_the_first_hello_reports_nothing(self) -> None:
        hello = Stage().group.hello(0.0)
        assert (hello.quorum, hello.lease_left, hello.state) == (None, 0.0, State())


class TestGivingUp:
    """A rank's call may end before the quorum comes. The join can't be taken back."""

    def test_the_quorum_waits_for_the_rank_to_ask_again(self) -> None:
        s = Stage()
        s.ask()
        s.feed(CallGone(1))
        assert s.arrive() == []
        assert s.ask() == [AnswerQuorum((2,), s.quorum(), 120.0)]

    def test_also_when_the_session_breaks_after_it_came(self) -> None:
        s = Stage()
        s.ask()
        s.feed(CallGone(1))
        s.arrive()
        s.feed(SessionDown("gone"))
        assert s.ask() == [AnswerQuorum((2,), s.quorum(), 120.0)]

    def test_a_rank_that_stands_elsewhere_by_then_asks_for_another(self) -> None:
        s = Stage()
        s.ask()
        s.feed(CallGone(1))
        s.arrive()
        (join,) = joins(s.ask(state=State(5, 2)))  # it has loaded a checkpoint
        assert join.member.state == State(5, 2)

    def test_before_the_join_nothing_is_owed(self) -> None:
        s = Stage(2).training()
        s.ask(0, reason=JoinReason.FAILED)
        s.feed(CallGone(3))
        assert s.ask(0, reason=JoinReason.FAILED) == []  # quorum 7 is no answer to a failure in it
        assert joins(s.ask(1))[0].reason is JoinReason.FAILED

    def test_a_join_that_is_no_more_owes_nothing(self) -> None:
        s = Stage().training()
        s.ask(reason=JoinReason.FAILED)
        s.feed(CallGone(2))
        s.feed(SessionDown("gone"))
        assert s.ask(reason=JoinReason.FAILED) == []
        assert joins(s.feed(SessionUp()))[0].reason is JoinReason.FAILED

    def test_the_lease_of_the_next_join_counts_from_its_own_sending(self) -> None:
        s = Stage()
        s.ask()
        s.feed(CallGone(1))
        s.feed(SessionDown("gone"))
        s.now = 50.0
        s.feed(SessionUp())
        s.now = 60.0
        s.ask()
        assert of(AnswerQuorum, s.arrive())[0].lease_until == 180.0
        s.now = 70.0
        s.ask(reason=JoinReason.FAILED)
        assert of(AnswerQuorum, s.arrive(8))[0].lease_until == 190.0

    def test_the_quorum_of_before_is_no_answer(self) -> None:
        s = Stage().training()
        s.vote()
        s.ask(state=State(1, 7))
        s.feed(CallGone(3))
        assert s.ask(state=State(1, 7)) == []  # still waits for the next
        assert of(AnswerQuorum, s.arrive(8))[0].calls == (4,)

    @pytest.mark.parametrize("why", ["over", "lease"])
    def test_a_quorum_that_ended_meanwhile_is_no_answer(self, why: str) -> None:
        s = Stage()
        s.ask()
        s.feed(CallGone(1))
        s.arrive()
        if why == "over":
            s.feed(QuorumRevoked(7, ("h:1",), "h:1 is lost"))
        else:
            s.now = 121.0
        (join,) = joins(s.ask())
        assert join.reason is JoinReason.REJOINED

    @pytest.mark.parametrize("order", ["gone first", "down first"])
    def test_without_a_session_a_join_that_nobody_waits_for_is_no_more(self, order: str) -> None:
        """R16: the lighthouse is away and the quorum in hand stands, so its step may still be committed."""
        s = Stage().training()
        s.ask()
        events: list[GroupEvent] = [CallGone(2), SessionDown("away")]
        for event in events if order == "gone first" else events[::-1]:
            s.feed(event)
        assert of(AnswerVote, s.vote())[0].commit
        assert s.feed(SessionUp()) == []  # the old state is not sent again
        assert joins(s.ask(state=State(1, 7)))[0].member.state == State(1, 7)

    def test_with_a_session_it_stands(self) -> None:
        s = Stage().training()
        s.ask()
        s.feed(CallGone(2))
        assert not of(AnswerVote, s.vote())[0].commit


class TestVoting:
    def test_all_ranks_say_yes(self) -> None:
        s = Stage(2).training()
        assert s.vote(0) == []
        assert s.vote(1) == [AnswerVote((3, 4), True, "")]
        assert s.group.state == State(1, 7)

    def test_I2_a_healer_that_commits_stands_one_above_the_top(self) -> None:
        s = Stage()
        s.ask()
        s.feed(QuorumArrived(quorum(member(NAME), member("h:1", State(8, 4)))))
        s.vote(step=8)
        assert s.group.state == State(9, 7)

    def test_no_commit_after_an_over(self) -> None:
        s = Stage().training()
        s.feed(QuorumRevoked(7, ("h:1",), "h:1 is lost"))
        assert s.vote() == [AnswerVote((2,), False, "quorum 7 is over: h:1 is lost")]

    def test_an_over_answers_those_who_wait(self) -> None:
        s = Stage(2).training()
        s.vote(0)
        push, answer = s.feed(QuorumRevoked(7, ("h:1",), "h:1 is lost"))
        assert push == PushRevoked(7, ("h:1",), "h:1 is lost")
        assert answer == AnswerVote((3,), False, "quorum 7 is over: h:1 is lost")
        assert of(AnswerVote, s.vote(1))[0].commit is False

    def test_an_over_after_the_commit_changes_nothing(self) -> None:
        s = Stage().training()
        s.vote()
        s.feed(QuorumRevoked(7, (), "a step of h:1 failed"))
        assert s.group.state == State(1, 7)

    def test_a_rank_that_asks_instead_of_voting_releases_the_others(self) -> None:
        s = Stage(2).training()
        s.vote(0)
        answer = AnswerVote((3,), False, "group rank 1 asked for a new quorum instead of voting.")
        assert answer in s.ask(1, reason=JoinReason.FAILED)

    def test_also_if_it_asked_first(self) -> None:
        s = Stage(2).training()
        s.ask(1, reason=JoinReason.FAILED)
        assert s.vote(0) == [AnswerVote((4,), False, "group rank 1 asked for a new quorum instead of voting.")]

    def test_asking_after_the_vote_is_the_way_of_the_world(self) -> None:
        s = Stage(2).training()
        s.vote(0)
        s.vote(1)
        assert s.ask(0, state=State(1, 7)) == []
        assert joins(s.ask(1, state=State(1, 7)))


class TestOver:
    def test_every_rank_hears_it_once(self) -> None:
        s = Stage().training()
        over = QuorumRevoked(7, ("h:1",), "h:1 is lost")
        assert s.feed(over) == [PushRevoked(7, ("h:1",), "h:1 is lost")]
        assert s.feed(over) == []

    @pytest.mark.parametrize("other", [6, 8])
    def test_of_another_quorum_it_is_stale(self, other: int) -> None:
        s = Stage().training()
        assert s.feed(QuorumRevoked(other, (), "x")) == []
        assert of(AnswerVote, s.vote())[0].commit

    def test_without_a_quorum_it_is_stale(self) -> None:
        assert Stage().feed(QuorumRevoked(7, (), "x")) == []

    def test_the_next_quorum_is_a_new_start(self) -> None:
        s = Stage().training()
        s.feed(QuorumRevoked(7, (), "x"))
        s.ask(reason=JoinReason.FAILED)
        s.arrive(8)
        assert of(AnswerVote, s.vote())[0].commit

    def test_a_boundary_ask_after_an_over_says_that_its_collectives_are_gone(self) -> None:
        s = Stage().training()
        s.vote()
        s.feed(QuorumRevoked(7, (), "x"))
        assert joins(s.ask(state=State(1, 7)))[0].reason is JoinReason.REJOINED

    def test_an_expired_member_rejoins(self) -> None:
        """Section 8, "expired member does not rejoin"."""
        s = Stage().training()
        s.now = 200.0
        assert joins(s.ask())[0].reason is JoinReason.REJOINED


class TestEnds:
    def test_R2_fenced(self) -> None:
        s = Stage(2).training()
        s.vote(0)
        s.ask(1)
        effects = s.feed(FencedArrived("g:2"))
        sentence = "g:1 must stop: g:2, a newer life of its group, is running."
        assert PushEnd(sentence, True) in effects
        assert FailCalls((4,), sentence, False) in effects

    def test_refused_while_asking_every_rank_is_told_at_once(self) -> None:
        s = Stage(2)
        s.ask(0)
        s.ask(1)
        effects = s.feed(RefusedArrived("your model differs."))
        assert effects == [FailCalls((1, 2), "your model differs.", False), PushEnd("your model differs.", False)]
        assert s.ask(0) == [FailCalls((3,), "your model differs.", False)]
        assert s.vote(0) == [AnswerVote((4,), False, "your model differs.")]
        assert s.feed(RefusedArrived("again")) == []

    def test_refused_while_voting_those_who_wait_are_told(self) -> None:
        s = Stage(2).training()
        s.vote(0)
        assert AnswerVote((3,), False, "no.") in s.feed(RefusedArrived("no."))

    def test_leaving(self) -> None:
        s = Stage().training()
        s.vote()
        assert s.feed(Leave()) == [SendLeave(State(1, 7))]
        assert s.ask() == [FailCalls((3,), "g:1 is leaving the job.", False)]
        assert s.feed(Leave()) == []

    def test_leaving_while_asking(self) -> None:
        s = Stage().training()
        s.vote()
        s.ask(state=State(1, 7))
        assert s.feed(Leave()) == [SendLeave(State(1, 7)), FailCalls((3,), "g:1 is leaving the job.", False)]
        s.feed(SessionDown("x"))
        assert s.feed(SessionUp()) == []  # no join any more

    def test_leaving_without_a_session_is_silent(self) -> None:
        assert Stage(connected=False).feed(Leave()) == []


@pytest.mark.parametrize("keeps", [(True, True), (True, False), (False, True), (False, False)])
def test_I2_all_ranks_reduce_again_or_none_does(keeps: tuple[bool, bool]) -> None:
    s = Stage(2)
    s.ask(0, keeps=keeps[0])
    s.ask(1, keeps=keeps[1])
    s.feed(CallGone(2))
    (answer,) = of(AnswerQuorum, s.arrive())
    assert answer.again is all(keeps)
    for still in (True, False):
        late = Stage(2)
        late.ask(0, keeps=keeps[0])
        late.ask(1, keeps=keeps[1])
        late.feed(CallGone(2))
        late.arrive()
        (answer,) = of(AnswerQuorum, late.ask(1, keeps=still))
        assert answer.again is (all(keeps) and still)


def test_without_runs_on_it_asks_at_every_step_and_waits_for_the_answer() -> None:
    s = Stage().training()
    s.now = 100.0
    assert s.feed(Tick()) == []
    s.vote()
    (join,) = joins(s.ask(state=State(1, 7)))
    assert (join.number, join.step_seconds) == (0, 0.0)
    assert s.feed(SessionDown("gone")) == []


@pytest.mark.parametrize("reason", [JoinReason.FAILED, JoinReason.NEW, JoinReason.HEALED])
def test_what_went_wrong_is_said_again_on_the_next_session(reason: JoinReason) -> None:
    s = Stage().training()
    s.ask(reason=reason)
    s.now = 500.0  # the lease has ended, too
    assert joins(s.feed(SessionUp()))[0].reason is reason


def test_who_declares_nothing_sends_nothing() -> None:
    assert joins(Stage().ask(traits=Fingerprint()))[0].traits is None


def test_after_the_end_nothing_is_asked_on_a_new_session() -> None:
    s = Stage(2)
    s.ask(0)
    s.ask(1)
    s.feed(FencedArrived("g:2"))
    assert s.group.waiting == ""
    assert s.feed(SessionUp()) == []


def test_what_it_waits_for_is_said() -> None:
    s = Stage(connected=False)
    s.ask()
    assert s.group.waiting == "the lighthouse has not answered the join: no session to the lighthouse yet."
    s.feed(SessionUp())
    assert s.group.waiting == "the lighthouse has not answered the join; its status says what it waits for."
    s.feed(SessionDown("it was refused"))
    assert s.group.waiting == "the lighthouse has not answered the join: it was refused."


def test_after_the_end_no_quorum_is_taken() -> None:
    s = Stage()
    s.ask()
    s.feed(FencedArrived("g:2"))
    (note,) = s.arrive()
    assert note.event == "stale_quorum"
    assert s.group.quorum is None


def test_a_peers_client_that_never_had_a_quorum_has_no_lease_to_lose() -> None:
    s = Stage()
    s.now = 500.0
    assert s.vote(quorum_id=0) == [AnswerVote((1,), True, "")]


@pytest.mark.parametrize(("field", "value"), [("world_size", 0), ("replica_id", "")])
def test_a_bad_setting_is_named(field: str, value: Any) -> None:
    values = {"replica_id": NAME, "address": "x", "store_address": "y", field: value}
    with pytest.raises(ConfigError, match=field):
        GroupConfig(**values)


def test_repr_says_where_it_stands() -> None:
    s = Stage().training()
    assert repr(s.group) == "<Group g:1 step 0 (quorum 0) <HeldQuorum q1 through step 0> idle>"


def test_a_hello_says_all_of_it() -> None:
    """A field that is left out is a default, and a lighthouse believes it."""
    config = GroupConfig(
        replica_id=NAME, address="http://g", store_address="g-store", library=OURS, life=Life(2, 5.0, "t"),
        boot_id="boot", runs_on=True, data='{"k":1}',
    )  # fmt: skip
    group = Group(config, 0.0)
    group.handle(SessionUp(), 0.0)
    (join,) = joins(group.handle(Ask(1, 0, State(4, 3), step_seconds=0.5), 0.0))
    assert join.member.data == '{"k":1}'
    held = quorum(member(NAME, State(4, 3)), member("h:1", State(4, 3)), id=7, granted_through=9)
    group.handle(QuorumArrived(held), 0.0)
    said = group.hello(1.0)
    assert (said.replica_id, said.address, said.library, said.runs_on) == (NAME, "http://g", OURS, True)
    assert (said.life, said.boot_id, said.quorum) == (Life(2, 5.0, "t"), "boot", held)
    assert said.granted_through == 9
    assert 0 < said.lease_left <= held.lease


class TestGoesOnAlone:
    """R16: whether a silent lighthouse is all that keeps it."""

    def group(self, *, healing: bool = False, runs_on: bool = True) -> Group:
        """At the end of its grant, at step 5 of a quorum that began at 4."""
        config = GroupConfig(
            replica_id=NAME, address="http://g", store_address="g-store", library=OURS, runs_on=runs_on
        )
        group = Group(config, 0.0)
        group.handle(SessionUp(), 0.0)
        group.handle(Ask(1, 0, State(4, 3)), 0.0)
        other = State(2, 1) if healing else State(4, 3)
        held = quorum(member(NAME, State(4, 3)), member("h:1", other), id=7, granted_through=5, lease=30.0)
        group.handle(QuorumArrived(held), 0.0)
        group.handle(Vote(2, 0, 4, 7, True), 0.0)
        return group

    def test_while_its_join_only_wants_more_steps(self) -> None:
        group = self.group()
        assert not group.goes_on_alone(0.5)  # it computes
        assert joins(group.handle(Ask(3, 0, State(5, 7)), 1.0))
        assert group.goes_on_alone(1.5)
        assert not group.goes_on_alone(30.5)  # the lease has ended
        (answer,) = of(AnswerQuorum, group.handle(SessionDown("silent"), 2.0))
        assert answer.calls == (3,)
        assert not group.goes_on_alone(2.5)

    @pytest.mark.parametrize(
        "fields", [{"reason": JoinReason.FAILED}, {"reason": JoinReason.NEW}, {"torn": True}, {"commit_failures": 1}]
    )
    def test_not_if_it_needs_the_lighthouse(self, fields: dict[str, Any]) -> None:
        group = self.group()
        group.handle(Ask(3, 0, State(5, 7), **fields), 1.0)
        assert not group.goes_on_alone(1.5)
        assert not of(AnswerQuorum, group.handle(SessionDown("silent"), 2.0))

    @pytest.mark.parametrize("how", [{"healing": True}, {"runs_on": False}])
    def test_not_where_each_step_needs_it(self, how: dict[str, bool]) -> None:
        group = self.group(**how)
        group.handle(Ask(3, 0, State(5, 7)), 1.0)
        assert not group.goes_on_alone(1.5)
