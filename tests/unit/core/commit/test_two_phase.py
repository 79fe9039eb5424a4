"""Two rounds before a commit: all ranks hold the result, then all groups say so (R12-R14)."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import OURS, member, of, quorum
from torchft_x.core.commit.two_phase import TwoPhaseCommit
from torchft_x.core.cross_group_vote import CrossVote, objection, row
from torchft_x.core.group.machine import Group, GroupConfig
from torchft_x.core.messages.group import (
    AnswerPrepared,
    AnswerQuorum,
    AnswerVote,
    Ask,
    CallGone,
    CrossVoteEnded,
    FailCalls,
    GroupEffect,
    QuorumArrived,
    QuorumRevoked,
    SendJoin,
    SessionDown,
    SessionUp,
    Vote,
)
from torchft_x.core.types import JoinReason, Member, Prepared, Quorum, State

NAME = "g:1"
T = State(4, 3)


class Stage:
    """A group at state T that stands in quorum 7 with h, both carriers unless told otherwise."""

    def __init__(self, world_size: int = 1, *, own: State = T, other: State = T) -> None:
        config = GroupConfig(
            replica_id=NAME, address="", store_address="", world_size=world_size, library=OURS, commit_vote=True
        )
        self.now = 0.0
        self.ranks = world_size
        self.group = Group(config, 0.0)
        self.calls = 0
        self.feed(SessionUp())
        self.ask(own)
        self.arrive(7, member(NAME, own), member("h:1", other))

    def feed(self, event: object) -> list[GroupEffect]:
        return self.group.handle(event, self.now)  # type: ignore[arg-type]

    def call(self) -> int:
        self.calls += 1
        return self.calls

    def ask(self, state: State = T, reason: JoinReason = JoinReason.BOUNDARY) -> Member | None:
        effects: list[GroupEffect] = []
        for rank in range(self.ranks):
            effects += self.feed(Ask(self.call(), rank, state, reason=reason))
        sent = of(SendJoin, effects)
        return sent[0].member if sent else None

    def arrive(self, id: int, *members: Member) -> AnswerQuorum:
        (answer,) = of(AnswerQuorum, self.feed(QuorumArrived(self.quorum(id, *members))))
        return answer

    def quorum(self, id: int, *members: Member) -> Quorum:
        return quorum(*members, id=id, granted_through=5)

    def vote(self, rank: int = 0, ok: bool = True, digest: int = 9, **fields: bool) -> list[GroupEffect]:
        return self.feed(Vote(self.call(), rank, 4, 7, ok, digest, 2, **fields))

    def cross(self, rank: int = 0, ok: bool = True) -> list[GroupEffect]:
        return self.feed(CrossVoteEnded(self.call(), rank, 4, 7, ok))


def test_a_commit_takes_both_rounds() -> None:
    s = Stage()
    (prepared,) = s.vote()
    assert prepared == AnswerPrepared((s.calls,), CrossVote(True, 7, 5, 9, 2))
    assert s.group.state == T
    assert s.cross() == [AnswerVote((s.calls,), True, "")]
    assert s.group.state == State(5, 7)
    join = s.ask(State(5, 7))
    assert join.prepared is None
    assert join.carried == (7,)


def test_all_ranks_in_both_rounds() -> None:
    s = Stage(2)
    assert s.vote(0, digest=1) == []
    (prepared,) = of(AnswerPrepared, s.vote(1, digest=2))
    assert len(prepared.calls) == 2
    assert prepared.vote.digest not in (0, 1, 2)  # one for the whole group
    assert s.cross(1) == []
    assert s.cross(0) == [AnswerVote((s.calls, s.calls - 1), True, "")]


def test_one_rank_that_says_no_prepares_nothing() -> None:
    s = Stage(2)
    s.vote(0)
    (answer,) = s.vote(1, ok=False, broken=True)
    assert not answer.commit
    join = s.ask(reason=JoinReason.FAILED)
    assert join.prepared is None
    assert join.carried == (7,)  # proof for the others that nobody has committed in quorum 7


def test_a_carrier_that_is_against_it_says_so_in_the_vote() -> None:
    """L1: its reductions are good, but too few contributed, or the user objects. It asked for the next quorum while
    the others waited for it in the vote until their time-out."""
    s = Stage(2)
    s.vote(0)
    (answer,) = s.vote(1, ok=False)
    assert answer.vote is not None
    assert "not ok" in objection([min(x) for x in zip(row(answer.vote), row(CrossVote(True, 7, 5, 9, 2)), strict=True)])
    s.cross(0, ok=False)
    (after,) = s.cross(1, ok=True)  # whatever it says it saw
    assert not after.commit
    assert after.reason == "group rank 1 voted against step 4."
    join = s.ask(reason=JoinReason.FAILED)
    assert (join.prepared, join.carried) == (None, (7,))


def test_the_lease_is_checked_at_the_commit() -> None:
    s = Stage()
    s.vote()
    s.now = 120.1
    (answer,) = s.cross()
    assert not answer.commit
    assert "lease" in answer.reason


def test_a_vote_that_passed_counts_though_the_quorum_is_over() -> None:
    s = Stage()
    s.vote()
    s.feed(QuorumRevoked(7, ("h:1",), "it died"))
    assert s.cross() == [AnswerVote((s.calls,), True, "")]


def test_nobody_gets_prepared_in_a_quorum_that_is_over() -> None:
    s = Stage()
    s.feed(QuorumRevoked(7, ("h:1",), "it died"))
    (answer,) = s.vote()
    assert isinstance(answer, AnswerVote)
    join = s.ask(reason=JoinReason.FAILED)
    assert join.prepared is None


def test_R4_nothing_is_committed_after_the_join() -> None:
    s = Stage(2)
    s.vote(0)
    s.vote(1)
    s.cross(0)
    s.ask(reason=JoinReason.FAILED)
    (answer,) = s.cross(1)
    assert not answer.commit


def test_R4_nor_after_a_join_that_came_before_the_outcome() -> None:
    s = Stage()
    s.vote()
    s.ask(reason=JoinReason.FAILED)
    (answer,) = s.cross()
    assert answer == AnswerVote((s.calls,), False, "the group has asked for the next quorum.")
    assert s.group.state == T


def digest_of(s: Stage) -> int:
    """What the group says once rank 1 has voted, too."""
    (prepared,) = of(AnswerPrepared, s.vote(1, digest=2))
    assert prepared.vote == CrossVote(True, 7, 5, prepared.vote.digest, 2)
    return prepared.vote.digest


class TestDigest:
    """One for all ranks, made of the votes that count."""

    def plain(self) -> Stage:
        s = Stage(2)
        s.vote(0, digest=1)
        return s

    def test_it_has_64_bits_and_depends_on_every_rank(self) -> None:
        other = Stage(2)
        other.vote(0, digest=3)
        digests = {digest_of(self.plain()), digest_of(other)}
        assert len(digests) == 2
        assert all(0 < d < 1 << 64 for d in digests)

    @pytest.mark.parametrize(("step", "quorum_id"), [(4, 6), (9, 7), (9, 6)])
    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_refused_vote_leaves_no_trace(self, rank: int, step: int, quorum_id: int) -> None:
        s = self.plain()
        (refused,) = s.feed(Vote(90, rank, step, quorum_id, True, 55, 2))
        assert not refused.commit
        assert digest_of(s) == digest_of(self.plain())

    def test_the_older_call_of_a_rank_that_votes_twice_is_told(self) -> None:
        s = self.plain()
        (failed,) = s.vote(0, digest=7)
        assert isinstance(failed, FailCalls)
        assert digest_of(s) != digest_of(self.plain())


class TestGone:
    """A rank whose call has ended can't learn the outcome."""

    def test_in_the_first_round(self) -> None:
        s = Stage(2)
        s.vote(0)
        s.feed(CallGone(s.calls))
        assert s.vote(1) == []

    def test_in_the_second(self) -> None:
        s = Stage(2)
        s.vote(0)
        s.vote(1)
        s.cross(0)
        s.feed(CallGone(s.calls))
        assert s.cross(1) == []


def test_the_outcome_between_groups_is_about_the_step_the_ranks_have_voted_on() -> None:
    s = Stage(2)
    s.vote(0)
    (early,) = s.cross(0)  # rank 1 has not said yet that it holds the result
    assert not early.commit
    s.vote(1)
    (other,) = s.feed(CrossVoteEnded(90, 0, 5, 7, True))
    assert other == AnswerVote(
        (90,), False, "group rank 0 has voted between groups on step 5, which the group has not."
    )
    assert s.cross(0) == []
    assert of(AnswerVote, s.cross(1))[0].commit


def test_after_a_complete_no_another_step_is_refused_without_a_say_between_groups() -> None:
    s = Stage()
    (said,) = s.vote(ok=False)
    assert isinstance(said, AnswerPrepared)
    (refused,) = s.feed(Vote(90, 0, 3, 7, True, 9, 2))
    assert "votes on step 3" in refused.reason


def test_a_rank_that_is_late_for_a_ballot_that_was_given_up_has_nothing_to_say_between_groups() -> None:
    """Not all ranks have voted, so somebody's collectives may be broken: the others must not wait for a row."""
    s = Stage(3)
    s.vote(0)
    (told,) = s.feed(Ask(s.call(), 1, T, reason=JoinReason.FAILED))
    assert isinstance(told, AnswerVote)
    (late,) = s.vote(2)
    assert late == AnswerVote((s.calls,), False, "group rank 1 asked for a new quorum instead of voting.")


def test_before_the_first_quorum_there_is_nothing_to_vote_on() -> None:
    group = Group(GroupConfig(replica_id=NAME, address="", store_address="", commit_vote=True), 0.0)
    (answer,) = group.handle(Vote(1, 0, 0, 7, True), 0.0)
    assert not answer.commit
    assert "holds no quorum" in answer.reason


class TestCarried:
    """The quorums a group was a carrier of since it came to its state: proof of what was not committed there (R14)."""

    def join(self, s: Stage, state: State = T) -> Member:
        join = s.ask(state, reason=JoinReason.FAILED)
        assert join is not None
        return join

    def test_a_commit_begins_anew(self) -> None:
        s = Stage()
        self.join(s)
        s.arrive(8, member(NAME, T, carried=(7,)), member("h:1", T, carried=(7,)))
        s.feed(Vote(s.call(), 0, 4, 8, True, 9, 2))
        (answer,) = s.feed(CrossVoteEnded(s.call(), 0, 4, 8, True))
        assert answer == AnswerVote((s.calls,), True, "")
        assert self.join(s, State(5, 8)).carried == (8,)

    def test_who_throws_a_commit_away_stands_where_it_stood_and_denies_nothing(self) -> None:
        """Its ranks' optimizers have not stepped. Others may have committed, so it must not be proof of the contrary."""
        s = Stage()
        s.vote()
        assert s.cross() == [AnswerVote((s.calls,), True, "")]
        join = self.join(s)
        assert (join.state, join.torn, join.prepared, join.carried) == (T, False, None, ())

    def test_if_only_some_ranks_throw_it_away_the_group_holds_nothing_whole(self) -> None:
        s = Stage(2)
        for rank in (0, 1):
            s.vote(rank)
        for rank in (0, 1):
            s.cross(rank)
        s.feed(Ask(90, 0, T, reason=JoinReason.FAILED))
        (join,) = of(SendJoin, s.feed(Ask(91, 1, State(5, 7), reason=JoinReason.FAILED)))
        assert join.member.torn

    def test_a_healer_carries_nothing(self) -> None:
        s = Stage(own=State(1, 1))
        assert self.join(s, State(1, 1)).carried == ()

    def test_whoever_came_to_another_state_proves_nothing_and_holds_nothing(self) -> None:
        s = Stage()
        s.vote()
        assert self.join(s, State(9, 9)).carried == ()
        s = Stage()
        s.vote()
        assert self.join(s, State(9, 9)).prepared is None  # a checkpoint was loaded

    def test_without_the_vote_between_groups_nothing_can_be_proven(self) -> None:
        config = GroupConfig(replica_id=NAME, address="", store_address="", library=OURS)
        group = Group(config, 0.0)
        sent: list[SendJoin] = []
        for event in (
            SessionUp(), Ask(1, 0, T), QuorumArrived(quorum(member(NAME, T), member("h:1", T), id=7)),
            Ask(2, 0, T, reason=JoinReason.FAILED), QuorumArrived(quorum(member(NAME, T), member("h:1", T), id=8)),
            Vote(3, 0, 4, 8, True), Ask(4, 0, State(5, 8)),
        ):  # fmt: skip
            sent += of(SendJoin, group.handle(event, 0.0))
        assert [j.member.carried for j in sent] == [(), (), ()]


def undecided() -> tuple[Stage, Prepared]:
    s = Stage()
    s.vote()
    s.cross(ok=False)
    join = s.ask(reason=JoinReason.FAILED)
    assert join.prepared is not None
    return s, join.prepared


def test_the_others_have_committed_late() -> None:
    s, held = undecided()
    answer = s.arrive(8, member(NAME, T, prepared=held, carried=(7,)), member("h:1", State(5, 7)))
    assert answer.commit == held
    assert s.group.state == State(5, 7)
    assert s.ask(State(5, 7), reason=JoinReason.FAILED).carried == (8,)


def test_another_carrier_denies_redo() -> None:
    s, held = undecided()
    answer = s.arrive(8, member(NAME, T, prepared=held, carried=(7,)), member("h:1", T, carried=(7,)))
    assert answer.commit is None
    assert s.group.state == T
    join = s.ask(reason=JoinReason.FAILED)
    assert join.prepared is None  # forgotten, because it is proven that nobody committed it
    assert join.carried == (7, 8)


@pytest.mark.parametrize("asked", ["before", "after"])
@pytest.mark.parametrize("lapsed", [False, True])
def test_R12_neither_a_new_session_nor_the_end_of_the_lease_lets_it_forget_what_is_prepared(
    asked: str, lapsed: bool
) -> None:
    """Another group may have committed it, and this one be the only one left that holds it."""
    s = Stage()
    s.vote()
    s.cross(ok=False)
    held = Prepared(7, 5, 9)
    if asked == "before":
        join = s.ask()
        assert join.prepared == held
    s.feed(SessionDown("the connection broke"))
    if lapsed:
        s.now = s.group.lease_until + 0.1
    sent = s.feed(SessionUp())
    if asked == "after":
        sent = s.feed(Ask(s.call(), 0, T))
    (join_again,) = of(SendJoin, sent)
    assert (join_again.member.prepared, join_again.member.carried) == (held, (7,))
    assert (join_again.reason is JoinReason.REJOINED) == lapsed
    assert s.arrive(8, member(NAME, T, prepared=held, carried=(7,))).commit == held


def test_R14_what_is_held_is_not_committed_because_another_result_is() -> None:
    """h has reduced the step again in quorum 8, which we never received: that result is newer, and nobody at the top that was
    in 8 denies it. Ours is committed nowhere."""
    s, held = undecided()
    other = Prepared(8, 5, 77)
    answer = s.arrive(9, member(NAME, T, prepared=held, carried=(7,)), member("h:1", T, prepared=other, carried=(7, 8)))
    assert answer.quorum.settled.adopted == other
    assert answer.commit is None
    assert s.group.state == T


def test_R14_what_is_held_is_not_committed_because_somebody_else_commits_late() -> None:
    """The others stand at step 5 as quorum 6 committed it; c holds that result. Ours of quorum 7 is another one."""
    s, held = undecided()
    late = member("c:1", T, prepared=Prepared(8, 5, 77))
    answer = s.arrive(9, member(NAME, T, prepared=held, carried=(7,)), late, member("h:1", State(5, 8)))
    assert answer.quorum.settled.late == ("c:1",)
    assert answer.commit is None
    assert s.group.state == T


@pytest.mark.parametrize("ranks", [1, 2])
def test_R13_a_vote_without_an_outcome_commits_nothing(ranks: int) -> None:
    """Whatever comes next but a quorum: a new session, the quorum's end, the same word once more."""
    s = Stage(ranks)
    for rank in range(ranks):
        s.vote(rank)
    for rank in range(ranks):
        effects = s.cross(rank, ok=rank < ranks - 1)
    assert [a.commit for a in of(AnswerVote, effects)] == [False]
    for event in (QuorumRevoked(7, ("h:1",), "it died"), SessionDown("cut"), SessionUp()):
        assert not of(AnswerVote, s.feed(event))
    assert not [a for a in of(AnswerVote, s.cross(0)) if a.commit]
    assert s.group.state == T
    join = s.ask(reason=JoinReason.FAILED)
    assert (join.state, join.prepared.state) == (T, State(5, 7))


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("others", [(member("h:1", State(5, 7)),), ()])  # they have committed, or are away
def test_I2_a_rank_whose_call_broke_commits_what_the_group_has_committed(
    others: tuple[Member, ...], over: bool
) -> None:
    """Its call ended before the quorum came. Without the word it would stay behind, and the group would be torn."""
    s = Stage(2)
    s.vote(0)
    s.vote(1)
    s.cross(0)
    s.cross(1, ok=False)
    join = s.ask(reason=JoinReason.FAILED)
    s.feed(CallGone(s.calls))
    held = join.prepared
    assert s.arrive(8, member(NAME, T, prepared=held, carried=(7,)), *others).commit == held
    if over:
        s.feed(QuorumRevoked(8, ("h:1",), "it died"))
    (answer,) = of(AnswerQuorum, s.feed(Ask(s.call(), 1, T, reason=JoinReason.FAILED)))
    assert answer.commit == held


@pytest.mark.parametrize("broken", [False, True])
def test_a_healer_takes_part_without_a_say(broken: bool) -> None:
    """The others need its row, unless its collectives are broken anyway."""
    s = Stage(own=State(1, 1))
    (answer,) = s.vote(ok=False, broken=broken)
    if broken:
        assert isinstance(answer, AnswerVote)
        return
    assert answer == AnswerPrepared((s.calls,), None)
    (after,) = s.cross()
    assert not after.commit


def test_a_healer_that_has_healed_commits_with_the_others_but_promises_nothing() -> None:
    s = Stage(own=State(1, 1))
    assert s.vote() == [AnswerPrepared((s.calls,), None)]
    assert s.group.state == State(1, 1)
    assert s.cross() == [AnswerVote((s.calls,), True, "")]
    join = s.ask(State(5, 7))
    assert join.carried == ()


def test_with_a_peers_client_nobody_votes_between_groups() -> None:
    """It knows nothing of that all-reduce, and gloo matches them by order."""
    s = Stage()
    s.ask()
    s.arrive(8, member(NAME, T), member("p:1", T, library=""))
    (answer,) = s.feed(Vote(s.call(), 0, 4, 8, True, 9, 2))
    assert answer == AnswerVote((s.calls,), True, "")


def test_a_torn_member_commits_nothing_that_another_adopts() -> None:
    s = Stage()
    s.vote()
    held = Prepared(7, 5, 9)
    s.feed(Ask(s.call(), 0, T, torn=True, reason=JoinReason.FAILED))
    answer = s.arrive(
        8, member(NAME, T, prepared=held, carried=(7,), torn=True), member("h:1", T, prepared=held, carried=(7,))
    )
    assert answer.quorum.settled.adopted == held
    assert answer.commit is None


def test_a_step_that_was_abstained_from_says_nothing_of_the_next() -> None:
    pledge = TwoPhaseCommit(NAME, 1, between_groups=True)
    pledge.open(quorum(member(NAME, T), id=7))
    times = {"now": 0.0, "lease_until": 9.0}
    pledge.vote(Vote(1, 0, 4, 7, False, 0, 1, False), **times)
    pledge.cross_vote_ended(CrossVoteEnded(2, 0, 4, 7, False), **times)
    pledge.vote(Vote(3, 0, 5, 7, True, 0, 1, False), **times)
    (answer,) = pledge.cross_vote_ended(CrossVoteEnded(4, 0, 5, 7, True), **times)
    assert answer.commit
