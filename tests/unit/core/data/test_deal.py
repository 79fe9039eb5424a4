"""Which slots a group has, and which a commit covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchft_x.core.data.deal import Claim, Deal, deal, deals_of, lane_slot, lane_slots, shares
from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.data.ranges import members
from torchft_x.core.types import Member, Part, Prepared, Quorum, Ranges, State

NONE = Claim()


def options(policy: Policy = Policy.CONSTANT, slots: int = 8) -> DataOptions:
    return DataOptions(policy, slots, 4)


def given_to(*claims: Claim, policy: Policy = Policy.CONSTANT, slots: int = 8) -> tuple[Ranges, ...]:
    return deal(options(policy, slots), claims).given


def test_slots_are_contiguous_and_need_not_divide() -> None:
    assert given_to(NONE, NONE, NONE) == (((0, 3),), ((3, 6),), ((6, 8),))
    assert deal(options(), [NONE, NONE, NONE]).slots == ((0, 8),)
    assert given_to(*[NONE] * 3, slots=2) == (((0, 1),), ((1, 2),), ())


def test_weights_share_by_largest_remainder() -> None:
    assert shares(8, [2, 1, 1]) == [4, 2, 2]
    assert shares(7, [2, 1, 1]) == [3, 2, 2]
    assert shares(10, [1, 1, 1]) == [4, 3, 3]
    assert shares(0, [1, 2]) == [0, 0]
    assert shares(5, []) == []


def test_holders_keep_their_slots_and_a_lost_groups_slots_are_left_out() -> None:
    after = deal(options(), [Claim(((0, 3),)), Claim(((6, 8),))])
    assert after == Deal(held=(((0, 3),), ((6, 8),)), given=((), ()), slots=((0, 3), (6, 8)))


def test_who_holds_none_gets_what_nobody_holds() -> None:
    assert given_to(Claim(((0, 3),)), NONE, Claim(((6, 8),))) == ((), ((3, 6),), ())
    assert given_to(Claim(((0, 8),)), NONE) == ((), ())


def test_strict_begins_anew_unless_all_slots_are_held() -> None:
    lost = deal(options(Policy.STRICT), [Claim(((0, 3),)), Claim(((6, 8),))])
    assert lost == Deal(held=((), ()), given=(((0, 4),), ((4, 8),)), slots=((0, 8),))
    whole = deal(options(Policy.STRICT), [Claim(((0, 3),)), Claim(((3, 8),))])
    assert whole.held == (((0, 3),), ((3, 8),))
    assert whole.slots == ((0, 8),)


def test_shrink_gives_each_group_one_slot() -> None:
    assert given_to(NONE, NONE, policy=Policy.SHRINK, slots=1) == (((0, 1),), ((1, 2),))
    after = deal(options(Policy.SHRINK, 1), [Claim(((0, 1),)), NONE, Claim(((2, 3),))])
    assert after.given == ((), ((1, 2),), ())
    assert after.slots == ((0, 3),)


def test_a_second_holder_of_a_slot_computes_others() -> None:
    after = deal(options(), [Claim(((0, 4),)), Claim(((2, 8),))])
    assert (after.held, after.given) == ((((0, 4),), ()), ((), ((4, 8),)))


def test_a_claim_to_slots_that_the_step_does_not_have_counts_for_nothing() -> None:
    after = deal(options(), [Claim(((0, 4),)), Claim(((4, 9),))])
    assert (after.held, after.given) == ((((0, 4),), ()), ((), ((4, 8),)))


HELD: Ranges = ((0, 4),)
TOP = State(5, 3)


def quorum(*members: Member) -> tuple[Quorum, Part]:
    whole = Quorum(9, 9, 1, members)
    return whole, Part(0, tuple(m.replica_id for m in members))


@pytest.mark.parametrize(
    ("first", "counts"),
    [
        (Member("a:1", state=TOP, held=HELD), True),
        (Member("a:1", state=TOP, held=HELD, torn=True), False),
        (Member("a:1", state=State(4, 3), held=HELD), False),  # it heals, and holds the gradients of another step
        (Member("a:1", state=State(4, 3), held=HELD, prepared=Prepared(3, 5, 7)), False),  # it commits that step late
    ],
)
def test_claims_count_at_the_top_only(first: Member, counts: bool) -> None:
    second = Member("b:1", state=TOP)
    now, later = deals_of(*quorum(first, second), options())
    assert now is not None
    assert later is not None
    assert now.held[0] == (HELD if counts else ())
    assert later.given == (((0, 4),), ((4, 8),))


def test_nobody_holds_what_an_adopted_step_was_made_of() -> None:
    """Another group may have committed the step: all commit it, and the next one begins."""
    both = [Member(f"{name}:1", state=TOP, held=HELD, prepared=Prepared(8, 6, 7), carried=(8,)) for name in "ab"]
    now, later = deals_of(*quorum(*both), options())
    assert now == later


def test_before_the_first_commit_nobody_holds_anything() -> None:
    now, later = deals_of(*quorum(Member("a:1", held=HELD), Member("b:1")), options())
    assert now == later
    assert deals_of(*quorum(Member("a:1")), None) == (None, None)


def test_a_lane_has_a_period_of_slots_in_a_row_and_more_behind_the_others() -> None:
    assert [lane_slot(step, 1, 3, 2) for step in range(5)] == [2, 3, 8, 9, 14]
    assert lane_slots([2, 2, 2], 2) == ((0, 6),)
    assert lane_slots([2, 0, 3], 2) == ((0, 2), (4, 6), (10, 11))
    assert lane_slots([], 2) == lane_slots([0, 0], 2) == ()


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(1, 4))
def test_no_slot_is_in_two_lanes(steps: list[int], period: int) -> None:
    taken = [lane_slot(k, lane, len(steps), period) for lane, count in enumerate(steps) for k in range(count)]
    assert len(set(taken)) == len(taken)
    assert members(lane_slots(steps, period)) == sorted(taken)
