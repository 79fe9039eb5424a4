"""Two rounds before a commit: all ranks hold the result, then all groups say so (R12-R14)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.group.stage import NAME, Stage, joins
from tests.unit.core.scene import member, of, quorum
from torchft_x.core.cross_group_vote import CrossVote, objection, row
from torchft_x.core.messages.group import (
    CallGone,
    CrossVoteEnded,
    GroupEffect,
    QuorumArrived,
    QuorumReply,
    SessionDown,
    SessionUp,
    VoteReply,
)
from torchft_x.core.messages.lighthouse import RevokeQuorum
from torchft_x.core.types import JoinReason, Member, Prepared, State

T = State(4, 3)
OVER = RevokeQuorum(7, ("h:1",), "it died")


class Carriers(Stage):
    """A group at state T that stands in quorum 7 with h, both carriers unless told otherwise."""

    def __init__(self, world_size: int = 1, *, own: State = T, other: State = T) -> None:
        super().__init__(world_size, commit_vote=True)
        self.asks(own)
        self.meets(7, member(NAME, own), member("h:1", other))

    def asks(self, state: State = T, reason: JoinReason = JoinReason.BOUNDARY) -> Any:
        """Ask on all ranks. Return the member that the join describes, or None."""
        effects: list[GroupEffect] = []
        for rank in range(self.ranks):
            effects += self.ask(rank, state=state, reason=reason)
        sent = joins(effects)
        return sent[0].member if sent else None

    def fails(self, state: State = T) -> Any:
        return self.asks(state, JoinReason.FAILED)

    def meets(self, id: int, *members: Member) -> QuorumReply:
        held = quorum(*members, id=id, granted_through=5)
        (answer,) = of(QuorumReply, self.feed(QuorumArrived(held)))
        return answer

    def votes(self, *against: int, digests: tuple[int, ...] = (9,), **fields: Any) -> Any:
        """Vote with all ranks. Return the answer."""
        fields = {"step": 4, "quorum_id": 7, **fields}
        (answer,) = self.vote(against=against, digests=digests, contributors=2, **fields)
        return answer

    def cross(self, ok: bool = True, *, step: int = 4, quorum_id: int = 7, refuted: bool = False) -> Any:
        """End the vote between groups. Return the answer."""
        (answer,) = self.feed(CrossVoteEnded(step, quorum_id, ok, refuted))
        return answer

    def prepared(self) -> Carriers:
        assert self.votes().prepared
        return self


def test_a_commit_takes_both_rounds() -> None:
    s = Carriers()
    assert s.votes() == VoteReply(False, prepared=True, row=CrossVote(True, 7, 5, 9, 2))
    assert s.group.state == T
    assert s.cross() == VoteReply(True)
    assert s.group.state == State(5, 7)
    join = s.asks(State(5, 7))
    assert (join.prepared, join.carried) == (None, (7,))


def test_a_carrier_that_is_against_it_says_so_in_the_vote() -> None:
    """L1: its reductions are good, but too few contributed, or the user objects. It asked for the next quorum while
    the others waited for it in the vote until their time-out."""
    s = Carriers(2)
    answer = s.votes(1)
    assert "not ok" in objection([min(x) for x in zip(row(answer.row), row(CrossVote(True, 7, 5, 9, 2)), strict=True)])
    assert s.cross() == VoteReply(False, "group rank 1 voted against step 4.")  # whatever rank 0 saw
    join = s.fails()
    assert (join.prepared, join.carried) == (None, (7,))


def test_a_result_that_is_refuted_is_not_adopted() -> None:
    """All groups hold the same result, so that the next quorum would adopt it."""
    s = Carriers().prepared()
    assert not s.cross(False, refuted=True).commit
    join = s.fails()
    assert (join.prepared, join.carried) == (None, (7,))


def test_the_lease_is_checked_at_the_commit() -> None:
    s = Carriers().prepared()
    s.now = 120.1
    assert s.cross() == VoteReply(False, "the lease of quorum 7 ended 0.1 s before the commit.")


def test_a_vote_that_passed_counts_though_the_quorum_is_over() -> None:
    s = Carriers().prepared()
    s.feed(OVER)
    assert s.cross() == VoteReply(True)


def test_nobody_gets_prepared_in_a_quorum_that_is_over() -> None:
    s = Carriers()
    s.feed(OVER)
    assert not s.votes().prepared
    assert s.fails().prepared is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_R4_nothing_is_committed_after_a_join(ranks: int) -> None:
    s = Carriers(ranks).prepared()
    s.fails()
    assert s.cross() == VoteReply(False, "the group has asked for the next quorum.")
    assert s.group.state == T


def test_one_digest_of_64_bits_depends_on_every_rank() -> None:
    digests = {Carriers(2).votes(digests=d).row.digest for d in [(1, 2), (3, 2), (2, 1)]}
    assert len(digests - {0, 1, 2, 3}) == 3
    assert all(0 < d < 1 << 64 for d in digests)


@pytest.mark.parametrize(("step", "quorum_id"), [(4, 6), (5, 7)])
def test_a_vote_between_groups_on_another_step_ends_nothing(step: int, quorum_id: int) -> None:
    s = Carriers()
    assert not s.cross().commit  # no rank has said yet that it holds the result
    s.prepared()
    other = s.cross(step=step, quorum_id=quorum_id)
    assert other == VoteReply(False, f"no vote between groups on step {step} is under way.")
    assert s.cross().commit


def test_a_vote_names_the_quorum_in_hand() -> None:
    (answer,) = Stage(commit_vote=True).vote(quorum_id=7)
    assert answer == VoteReply(False, "the group votes in quorum 7, but holds no quorum.")
    s = Carriers()
    assert s.votes(quorum_id=6).reason == "the group votes in quorum 6, but holds quorum 7."


class TestCarried:
    """The quorums a group was a carrier of since it came to its state: proof of what was not committed there (R14)."""

    def test_a_commit_begins_anew(self) -> None:
        s = Carriers()
        s.fails()
        s.meets(8, member(NAME, T, carried=(7,)), member("h:1", T, carried=(7,)))
        s.votes(quorum_id=8)
        assert s.cross(quorum_id=8).commit
        assert s.fails(State(5, 8)).carried == (8,)

    def test_who_throws_a_commit_away_stands_where_it_stood_and_denies_nothing(self) -> None:
        """Its ranks' optimizers have not stepped. Others may have committed, so it must not be proof of the contrary."""
        s = Carriers().prepared()
        assert s.cross().commit
        join = s.fails()
        assert (join.state, join.torn, join.prepared, join.carried) == (T, False, None, ())

    def test_whoever_came_to_another_state_proves_nothing_and_holds_nothing(self) -> None:
        join = Carriers().prepared().fails(State(9, 9))  # a checkpoint was loaded
        assert (join.prepared, join.carried) == (None, ())

    def test_without_the_vote_between_groups_nothing_can_be_proven(self) -> None:
        s, both = Stage(), (member(NAME, T), member("h:1", T))
        sent = s.ask(state=T)
        s.feed(QuorumArrived(quorum(*both, id=7)))
        sent += s.ask(state=T, reason=JoinReason.FAILED)
        s.feed(QuorumArrived(quorum(*both, id=8)))
        s.vote(step=4)
        sent += s.ask(state=State(5, 8))
        assert [j.member.carried for j in joins(sent)] == [(), (), ()]


def undecided() -> tuple[Carriers, Prepared]:
    """A group whose vote between groups ended without an answer, and what it holds."""
    s = Carriers().prepared()
    s.cross(ok=False)
    held = s.fails().prepared
    assert held == Prepared(7, 5, 9)
    return s, held


@pytest.mark.parametrize("asked", ["before", "after"])
@pytest.mark.parametrize("lapsed", [False, True])
def test_R12_neither_a_new_session_nor_the_end_of_the_lease_lets_it_forget_what_is_prepared(
    asked: str, lapsed: bool
) -> None:
    """Another group may have committed it, and this one be the only one left that holds it."""
    s = Carriers().prepared()
    s.cross(ok=False)
    held = Prepared(7, 5, 9)
    if asked == "before":
        assert s.asks().prepared == held
    s.feed(SessionDown("the connection broke"))
    if lapsed:
        s.now = s.group.lease_until + 0.1
    sent = s.feed(SessionUp())
    if asked == "after":
        sent = s.ask(state=T)
    (join_again,) = joins(sent)
    assert (join_again.member.prepared, join_again.member.carried) == (held, (7,))
    assert (join_again.reason is JoinReason.REJOINED) == lapsed
    assert s.meets(8, member(NAME, T, prepared=held, carried=(7,))).commit == held


def test_R13_a_vote_without_an_outcome_commits_nothing() -> None:
    """Whatever comes next but a quorum: a new session, the quorum's end, the same word once more."""
    s = Carriers().prepared()
    assert not s.cross(ok=False).commit
    for event in (OVER, SessionDown("cut"), SessionUp()):
        assert not of(VoteReply, s.feed(event))
    assert not s.cross().commit
    assert s.group.state == T
    join = s.fails()
    assert (join.state, join.prepared.state) == (T, State(5, 7))


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("others", [(member("h:1", State(5, 7)),), ()])  # they have committed, or are away
def test_I2_a_rank_whose_call_broke_commits_what_the_group_has_committed(
    others: tuple[Member, ...], over: bool
) -> None:
    """Its call ended before the quorum came. Without the word it would stay behind, and the group would be torn."""
    s = Carriers(2).prepared()
    s.cross(ok=False)
    held = s.fails().prepared
    s.feed(CallGone(s.calls))
    assert s.meets(8, member(NAME, T, prepared=held, carried=(7,)), *others).commit == held
    if over:
        s.feed(RevokeQuorum(8, ("h:1",), "it died"))
    (answer,) = of(QuorumReply, s.ask(1, state=T, reason=JoinReason.FAILED))
    assert answer.commit == held


@pytest.mark.parametrize("broken", [False, True])
def test_a_healer_takes_part_without_a_say(broken: bool) -> None:
    """The others need its row, unless its collectives are broken anyway."""
    s = Carriers(own=State(1, 1))
    answer = s.votes(0, broken=broken)
    if broken:
        assert not answer.prepared
        return
    assert answer == VoteReply(False, prepared=True)
    assert not s.cross().commit
    assert s.fails(State(1, 1)).carried == ()
    s = Carriers(own=State(1, 1))  # it has healed: it commits with the others but promises nothing
    assert s.votes() == VoteReply(False, prepared=True)
    assert s.group.state == State(1, 1)
    assert s.cross().commit
    assert s.asks(State(5, 7)).carried == ()


def test_a_torn_member_commits_nothing_that_another_adopts() -> None:
    s = Carriers().prepared()
    held = Prepared(7, 5, 9)
    s.ask(state=T, torn=True, reason=JoinReason.FAILED)
    torn = member(NAME, T, prepared=held, carried=(7,), torn=True)
    answer = s.meets(8, torn, member("h:1", T, prepared=held, carried=(7,)))
    assert answer.quorum.settled.adopted == held
    assert answer.commit is None


def test_a_step_that_was_abstained_from_says_nothing_of_the_next() -> None:
    s = Carriers()
    s.votes(0)
    s.cross(ok=False)
    s.votes(step=5)
    assert s.cross(step=5).commit


OTHER = Prepared(8, 5, 77)


@pytest.mark.parametrize(
    ("others", "settled", "carried"),
    [
        # The others have committed it late, and this group does, too: from there it carries the quorum it is in.
        ((member("h:1", State(5, 7)),), (None, (NAME,)), (9,)),
        # Another carrier denies it, which proves that nobody committed it.
        ((member("h:1", T, carried=(7,)),), (None, ()), (7, 9)),
        # h has reduced the step again in quorum 8, which we never received: that result is newer, and nobody at the
        # top that was in 8 denies it. Ours is committed nowhere.
        ((member("h:1", T, prepared=OTHER, carried=(7, 8)),), (OTHER, ()), (7,)),
        # The others stand at step 5 as quorum 8 committed it; c holds that result. Ours of quorum 7 is another one.
        ((member("c:1", T, prepared=OTHER), member("h:1", State(5, 8))), (None, ("c:1",)), (7,)),
    ],
)
def test_R14_what_is_held_is_committed_only_where_the_others_have_committed_the_very_result(
    others: tuple[Member, ...], settled: tuple[Prepared | None, tuple[str, ...]], carried: tuple[int, ...]
) -> None:
    s, held = undecided()
    answer = s.meets(9, member(NAME, T, prepared=held, carried=(7,)), *others)
    assert (answer.quorum.settled.adopted, answer.quorum.settled.late) == settled
    commits = NAME in settled[1]
    assert answer.commit == (held if commits else None)
    assert s.group.state == (State(5, 7) if commits else T)
    join = s.fails(s.group.state)
    assert (join.prepared, join.carried) == (None, carried)
