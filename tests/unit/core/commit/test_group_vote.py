"""The in-group vote."""

from __future__ import annotations

import pytest

from torchft_x.core.commit.two_phase import GroupVote
from torchft_x.core.messages.group import AnswerVote, FailCalls, Vote

Q = 40


def ballot(world_size: int = 2) -> GroupVote:
    b = GroupVote(world_size)
    assert b.open(Q) == []
    return b


def vote(
    b: GroupVote, rank: int, ok: bool = True, *, step: int = 3, quorum: int = Q, call: int | None = None
) -> object:
    number = rank + 100 if call is None else call
    effects = b.vote(Vote(number, rank, step, quorum, ok), now=10.0, lease_until=10.0)
    return effects[0] if len(effects) == 1 else effects


def test_nobody_is_answered_before_all_have_voted() -> None:
    b = ballot(3)
    assert vote(b, 2) == vote(b, 0) == []
    assert b.waiting
    assert vote(b, 1) == AnswerVote((100, 101, 102), True, "")
    assert not b.waiting


def test_R13_the_lease_is_looked_at_when_everybody_has_said_yes() -> None:
    b = ballot()
    assert b.vote(Vote(1, 0, 3, Q, True), now=5.0, lease_until=10.0) == []
    (answer,) = b.vote(Vote(2, 1, 3, Q, True), now=10.5, lease_until=10.0)
    assert answer == AnswerVote((1, 2), False, f"the lease of quorum {Q} ended 0.5 s before the commit.")


def test_I2_who_asks_again_after_the_decision_gets_the_same_answer_whatever_is_said() -> None:
    b = ballot()
    vote(b, 0)
    vote(b, 1)
    assert vote(b, 1, call=7) == AnswerVote((7,), True, "")
    assert b.cancel("the quorum is over") == []
    assert vote(b, 1, ok=False, call=8) == AnswerVote((8,), True, "")


@pytest.mark.parametrize("voted", [True, False])
def test_I2_who_votes_after_a_cancellation_gets_the_same_answer(voted: bool) -> None:
    b = ballot()
    if voted:
        vote(b, 0)
    assert b.cancel("the quorum is over") == [AnswerVote((100,), False, "the quorum is over")] * voted
    assert voted or vote(b, 0) == AnswerVote((100,), False, "the quorum is over")
    assert vote(b, 1) == AnswerVote((101,), False, "the quorum is over")


def test_the_next_step_of_the_same_quorum_is_a_new_ballot() -> None:
    b = ballot()
    vote(b, 0)
    vote(b, 1)
    assert vote(b, 0, step=4) == []
    assert vote(b, 1, step=4, ok=False) == AnswerVote((100, 101), False, "group rank 1 voted against step 4.")


def test_a_new_quorum_ends_the_ballot_in_hand() -> None:
    b = ballot()
    vote(b, 0)
    assert b.open(41) == [AnswerVote((100,), False, "the group has moved on to the next quorum.")]
    assert vote(b, 0, step=9, quorum=41) == []  # about any step
    assert vote(b, 1, step=9, quorum=41) == AnswerVote((100, 101), True, "")


def test_only_the_vote_of_that_call_is_taken_back() -> None:
    b = ballot(3)
    vote(b, 0)
    vote(b, 1)
    b.gone(100)
    assert b.voted == {1}
    assert vote(b, 2) == []  # rank 0 would not learn of a commit
    assert vote(b, 0, call=9) == AnswerVote((9, 101, 102), True, "")


def test_the_older_call_of_a_rank_that_votes_twice_is_told() -> None:
    b = ballot()
    vote(b, 0)
    assert vote(b, 0, call=9) == FailCalls((100,), "group rank 0 has voted on step 3 again, from another call.", False)
    assert vote(b, 1) == AnswerVote((9, 101), True, "")


def test_a_no_stays_a_no() -> None:
    b = ballot()
    vote(b, 0, ok=False)
    vote(b, 0, ok=True, call=9)
    assert vote(b, 1) == AnswerVote((9, 101), False, "group rank 0 voted against step 3.")


class TestPeersClients:
    """They name no quorum (0), and may vote on one step again and again."""

    def test_the_same_step_again_is_a_new_ballot(self) -> None:
        b = GroupVote(2)
        vote(b, 0, quorum=0)
        vote(b, 1, quorum=0)
        assert vote(b, 0, quorum=0) == []
        assert vote(b, 1, quorum=0, ok=False) == AnswerVote((100, 101), False, "group rank 1 voted against step 3.")

    def test_a_late_rank_still_gets_the_cancelled_ballots_answer(self) -> None:
        b = ballot()
        vote(b, 0, quorum=0)
        b.cancel("over")
        assert vote(b, 1, quorum=0) == AnswerVote((101,), False, "over")

    def test_the_step_is_compared_all_the_same(self) -> None:
        b = GroupVote(2)
        vote(b, 0, quorum=0)
        assert isinstance(vote(b, 1, quorum=0, step=9), AnswerVote)
        assert b.waiting


@pytest.mark.parametrize(
    ("rank", "step", "quorum", "why"),
    [
        (1, 3, 39, f"group rank 1 votes in quorum 39, but the group holds quorum {Q}."),
        (1, 4, Q, "group rank 1 votes on step 4, but the ballot in hand is on step 3."),
        (2, 3, Q, "group rank 2 is outside this group of 2 ranks."),
    ],
)
def test_a_vote_for_another_ballot_is_refused_and_changes_nothing(rank: int, step: int, quorum: int, why: str) -> None:
    b = ballot()
    vote(b, 0)
    assert vote(b, rank, step=step, quorum=quorum) == AnswerVote((100 + rank,), False, why)
    assert vote(b, 1) == AnswerVote((100, 101), True, "")
    text = "group rank 0 votes in quorum 1, but the group holds no quorum."
    assert vote(GroupVote(2), 0, quorum=1) == AnswerVote((100,), False, text)
