"""The vote of ranks that run torchft: they vote one by one, name no quorum, and may vote on one step again and again."""

from __future__ import annotations

import pytest

from torchft_x.core.commit.two_phase import ShouldCommitVote
from torchft_x.core.messages.group import FailCalls, Vote, VoteReply


def opened(world_size: int = 2) -> ShouldCommitVote:
    b = ShouldCommitVote(world_size)
    assert b.open() == []
    return b


def vote(
    b: ShouldCommitVote, rank: int, ok: bool = True, *, step: int = 3, call: int | None = None, late: str = ""
) -> object:
    effects = b.vote(Vote(rank + 100 if call is None else call, rank, step, ok), late)
    return effects[0] if len(effects) == 1 else effects


def test_nobody_is_answered_before_all_have_voted() -> None:
    b = opened(3)
    assert vote(b, 2) == vote(b, 0) == []
    assert vote(b, 1) == VoteReply(True, "", calls=(100, 101, 102))


def test_R13_the_lease_is_looked_at_when_everybody_has_said_yes() -> None:
    b = opened()
    assert vote(b, 0) == []
    assert vote(b, 1, late="the lease ended.") == VoteReply(False, "the lease ended.", calls=(100, 101))


@pytest.mark.parametrize("voted", [True, False])
def test_I2_who_votes_after_a_cancellation_gets_the_same_answer(voted: bool) -> None:
    b = opened()
    if voted:
        vote(b, 0)
    assert b.cancel("the quorum is over") == [VoteReply(False, "the quorum is over", calls=(100,))] * voted
    assert voted or vote(b, 0) == VoteReply(False, "the quorum is over", calls=(100,))
    assert vote(b, 1) == VoteReply(False, "the quorum is over", calls=(101,))


@pytest.mark.parametrize("step", [3, 4])
def test_a_vote_after_the_decision_begins_a_new_one(step: int) -> None:
    b = opened()
    vote(b, 0)
    vote(b, 1)
    assert vote(b, 0, step=step) == []
    assert vote(b, 1, step=step, ok=False) == VoteReply(
        False, f"group rank 1 voted against step {step}.", calls=(100, 101)
    )


def test_a_new_quorum_ends_the_vote_in_hand() -> None:
    b = opened()
    vote(b, 0)
    assert b.open() == [VoteReply(False, "the group has moved on to the next quorum.", calls=(100,))]
    assert vote(b, 0, step=9) == []  # about any step
    assert vote(b, 1, step=9) == VoteReply(True, "", calls=(100, 101))


def test_only_the_vote_of_that_call_is_taken_back() -> None:
    b = opened(3)
    vote(b, 0)
    vote(b, 1)
    b.gone(100)
    assert vote(b, 2) == []  # rank 0 would not learn of a commit
    assert vote(b, 0, call=9) == VoteReply(True, "", calls=(9, 101, 102))


def test_the_older_call_of_a_rank_that_votes_twice_is_told_and_a_no_stays_a_no() -> None:
    b = opened()
    vote(b, 0, ok=False)
    assert vote(b, 0, call=9) == FailCalls((100,), "group rank 0 has voted on step 3 again, from another call.", False)
    assert vote(b, 1) == VoteReply(False, "group rank 0 voted against step 3.", calls=(9, 101))


@pytest.mark.parametrize(
    ("rank", "step", "why"),
    [
        (1, 4, "group rank 1 votes on step 4, but the vote in hand is on step 3."),
        (2, 3, "group rank 2 is outside this group of 2 ranks."),
    ],
)
def test_a_vote_for_another_step_is_refused_and_changes_nothing(rank: int, step: int, why: str) -> None:
    b = opened()
    vote(b, 0)
    assert vote(b, rank, step=step) == VoteReply(False, why, calls=(100 + rank,))
    assert vote(b, 1) == VoteReply(True, "", calls=(100, 101))
