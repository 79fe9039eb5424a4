"""When a state is copied into memory that outlives its process, and which copy counts."""

from __future__ import annotations

import itertools

import pytest

from torchft_x.core.training.memory_checkpoint import (
    COST,
    SHORTEST,
    CopyDecision,
    CopySchedule,
    CopyVote,
    HeldCopies,
    newest_common,
)
from torchft_x.core.types import State


def copies(took: float, step: float, steps: int = 4096) -> set[int]:
    """After which steps a group copies whose copies take so many seconds, in steps of so many."""
    schedule, begun = CopySchedule(), set()
    for n in range(1, steps + 1):
        if schedule.due(n, step):
            begun.add(n)
            schedule.copied(took)
    return begun


def test_the_first_copy_is_due_at_once_and_the_next_when_a_steps_length_is_known() -> None:
    schedule = CopySchedule()
    assert schedule.due(1, 0.0)
    schedule.copied(1e-6)
    assert not schedule.due(2, 0.0)
    assert schedule.due(2, 1.0)


@pytest.mark.parametrize("took", [0.005, 0.1, 3.0])
@pytest.mark.parametrize("step", [0.01, 0.1, 10.0])
def test_copies_take_their_part_of_the_time_and_no_more(took: float, step: float) -> None:
    steps = 1 << 16
    share = (len(copies(took, step, steps)) - 1) * took / (step * steps)  # but the first
    often = min(1.0, step / SHORTEST / 2)  # it copies no more than once a step, and once in 0.1 s
    assert 0.99 * min(COST / 2, took / step * often) <= share <= COST


@pytest.mark.parametrize(("mine", "theirs"), [(0.02, 0.03), (0.02, 0.5), (0.001, 2.0)])
def test_who_copies_less_often_does_so_after_steps_at_which_all_copy(mine: float, theirs: float) -> None:
    assert copies(theirs, 0.1) - {1} <= copies(mine, 0.1)
    assert copies(theirs, 0.11) - {1} <= copies(mine, 0.09)  # they measure their steps differently


def test_a_tiny_state_is_not_copied_all_the_time() -> None:
    begun = sorted(copies(1e-6, step=0.001))[1:]
    assert all((b - a) * 0.001 >= SHORTEST for a, b in itertools.pairwise(begun))


def test_one_slow_copy_puts_the_next_off_and_is_forgotten() -> None:
    schedule = CopySchedule()
    schedule.copied(1.0)
    assert [n for n in range(1, 257) if schedule.due(n, 1.0)] == [128, 256]
    for _ in range(8):
        schedule.copied(0.01)
    assert schedule.due(2, 1.0)


def group(ranks: int, common: State | None = None) -> list[HeldCopies]:
    return [HeldCopies(common) for _ in range(ranks)]


def agree(group: list[HeldCopies], votes: list[CopyVote], state: State | None, *, due: bool = True) -> CopyDecision:
    decision = group[0].decide(votes, due=due, commit=state is not None)
    for rank in group:
        rank.receive(decision, state)
    return decision


IDLE, BUSY = CopyVote.IDLE, CopyVote(0)


def test_all_ranks_copy_after_the_same_step_and_none_while_another_still_copies() -> None:
    ranks = group(2)
    assert not agree(ranks, [IDLE, BUSY], State(1, 7)) & CopyDecision.COPY
    assert not agree(ranks, [IDLE, IDLE], None) & CopyDecision.COPY
    assert not agree(ranks, [IDLE, IDLE], State(2, 7), due=False) & CopyDecision.COPY
    assert agree(ranks, [IDLE, IDLE], State(3, 7)) & CopyDecision.COPY
    assert [r.wanted for r in ranks] == [State(3, 7)] * 2


def test_a_copy_counts_when_all_ranks_hold_it() -> None:
    ranks = group(2)
    agree(ranks, [IDLE, IDLE], State(3, 7))
    mine = ranks[0].vote([State(3, 7), None], idle=True, torn=False, behind=False)
    theirs = ranks[1].vote([None, None], idle=False, torn=False, behind=False)
    agree(ranks, [mine, theirs], State(4, 7))
    assert [r.common for r in ranks] == [None, None]
    agree(ranks, [mine, mine], State(5, 7), due=False)
    assert [r.common for r in ranks] == [State(3, 7)] * 2


def test_a_copy_counts_in_the_very_vote_that_tells_of_it() -> None:
    """M1, seed 9101296: the group's first copy was complete and the next step's heal broke off. Rank 0 asked for a
    copy before it had taken the vote in, so the group went on torn with a copy in memory."""
    ranks = group(2)
    agree(ranks, [IDLE, IDLE], State(3, 7))
    votes = [
        r.vote([State(3, 7), None], idle=True, torn=t, behind=t) for r, t in zip(ranks, (False, True), strict=True)
    ]
    assert agree(ranks, votes, None) & CopyDecision.RESTORE
    assert [r.to_load(State(3, 7)) for r in ranks] == [State(3, 7)] * 2


def test_the_groups_copy_is_never_overwritten_and_else_the_older_one() -> None:
    a, b = State(3, 7), State(5, 7)
    assert HeldCopies(None).slot([None, None]) == 0
    assert HeldCopies(None).slot([a, None]) == 1
    assert HeldCopies(b).slot([a, b]) == 0
    assert HeldCopies(a).slot([a, b]) == 1  # another rank does not hold b
    assert HeldCopies(None).slot([b, a]) == 1


def test_a_rank_that_missed_a_copy_does_not_cost_the_group_the_one_before() -> None:
    """Rank 1 did not stand where it was to copy: rank 0 holds (5, 7), rank 1 does not. Then both copy (6, 7)."""
    ranks = group(2, State(3, 7))
    slots: list[list[State | None]] = [[State(3, 7), State(5, 7)], [State(3, 7), None]]
    ranks[0]._ordered = ranks[1]._ordered = State(5, 7)
    votes = [r.vote(s, idle=True, torn=False, behind=False) for r, s in zip(ranks, slots, strict=True)]
    assert agree(ranks, votes, State(6, 7)) & CopyDecision.COPY
    assert [r.slot(s) for r, s in zip(ranks, slots, strict=True)] == [1, 1]


def test_an_attempt_begins_with_the_groups_copy_and_goes_back_to_it_when_a_heal_breaks_off() -> None:
    ranks = group(2, State(3, 7))
    assert [r.to_load(State()) for r in ranks] == [State(3, 7)] * 2
    assert [r.to_load(State()) for r in ranks] == [None] * 2
    assert (
        not agree(ranks, [IDLE, CopyVote.TORN], State(9, 8)) & CopyDecision.RESTORE
    )  # it has committed without that rank?
    assert [r.common for r in ranks] == [State(3, 7)] * 2
    assert agree(ranks, [IDLE, CopyVote.TORN], None) & CopyDecision.RESTORE
    assert [r.to_load(s) for r, s in zip(ranks, (State(9, 8), State()), strict=True)] == [State(3, 7)] * 2
    assert [r.to_load(State(3, 7)) for r in ranks] == [None] * 2
    assert group(1)[0].to_load(State()) is None
    assert group(1, State(3, 7))[0].to_load(State(5, 7)) is None  # the script has loaded something newer
    assert not agree(group(2), [IDLE, CopyVote.TORN], None) & CopyDecision.RESTORE


@pytest.mark.parametrize(
    ("behind", "back"), [((False, False), False), ((True, False), True), ((False, True), True), ((True, True), False)]
)
def test_a_group_whose_ranks_stand_apart_goes_back_to_its_copy(behind: tuple[bool, bool], back: bool) -> None:
    """The heal of one has failed, before a byte of it was there; that of the other has not."""
    ranks = group(2, State(3, 7))
    assert bool(agree(ranks, [CopyVote.BEHIND * b for b in behind], None) & CopyDecision.RESTORE) == back


def test_a_copy_from_a_history_that_has_ended_is_of_no_use_once_this_one_goes_on() -> None:
    (rank,) = group(1, State(16, 5))
    rank.receive(CopyDecision(0), None)
    assert rank.common == State(16, 5)
    rank.receive(CopyDecision(0), State(11, 9))
    assert rank.common is None


def test_a_group_goes_on_from_the_newest_copy_that_all_its_ranks_hold() -> None:
    a, b, c = State(8, 1), State(16, 1), State(24, 2)
    assert newest_common([[a, b], [b, c], [a, b]]) == b
    assert newest_common([[a, b]]) == b
    assert newest_common([[a], []]) is None
    assert newest_common([[State(8, 1)], [State(8, 2)]]) is None  # the same step of two histories
    assert newest_common([]) is None
