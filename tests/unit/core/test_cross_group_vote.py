"""The vote between groups: a minimum over rows says whether all agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchft_x.core.cross_group_vote import (
    WIDTH,
    CrossVote,
    objection,
    roll_call_answer,
    roll_call_follows,
    roll_call_row,
    row,
    wrong_states,
)
from torchft_x.errors import StepError

YES = CrossVote(ok=True, quorum=1_234_567 << 10, step=7, digest=0xFFFF_FFFF_0000_0001, contributors=3)


def reduce(*votes: CrossVote | None) -> list[int]:
    return [min(column) for column in zip(*map(row, votes), strict=True)]


def test_a_healer_has_no_say() -> None:
    assert objection(reduce(YES, None, YES)) == ""
    assert "no member that holds the newest state" in objection(reduce(None, None))


def test_one_no_is_enough() -> None:
    assert objection(reduce(YES, replace(YES, ok=False), None)) == "a member is not ok"


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("quorum", YES.quorum + 1, "quorum"),
        ("step", 8, "step"),
        ("digest", YES.digest ^ 1, "lower half of the digest"),
        ("digest", YES.digest ^ (1 << 63), "upper half of the digest"),
        ("contributors", 2, "number of participants"),
    ],
)
def test_what_differs_is_named(field: str, value: int, named: str) -> None:
    other = replace(YES, **{field: value})
    assert objection(reduce(YES, other)) == f"the members differ in the {named}"
    assert objection(reduce(other, YES, None)) == f"the members differ in the {named}"


def test_a_row_of_another_version() -> None:
    with pytest.raises(StepError, match="one version"):
        objection([1, 2, 3])


ids = st.integers(0, (1 << 62) - 1)
votes = st.builds(
    CrossVote, ok=st.booleans(), quorum=ids, step=ids, digest=st.integers(0, (1 << 64) - 1), contributors=ids
)


@given(st.lists(st.none() | votes | st.just(YES), min_size=1, max_size=5))
def test_it_passes_exactly_if_all_carriers_say_the_same_yes(cast: list[CrossVote | None]) -> None:
    said = {v for v in cast if v is not None}
    expected = len(said) == 1 and all(v.ok for v in said)
    assert (objection(reduce(*cast)) == "") is expected
    assert all(-(1 << 63) <= x < 1 << 63 for v in cast for x in row(v))
    assert all(len(row(v)) == WIDTH for v in cast)


digests = st.sampled_from([0, 1, 1 << 32, 2**64 - 1])


@given(st.lists(digests, min_size=1, max_size=6))
def test_the_roll_is_called_if_digests_differ(held: list[int]) -> None:
    """0: not compared."""
    least = [min(column) for column in zip(*(row(YES, digest) for digest in held), strict=True)]
    assert roll_call_follows(least) is (len({d for d in held if d}) > 1)
    assert objection(least) == ""


@given(digests, digests)
def test_one_member_can_call_the_roll(one: int, other: int) -> None:
    rows = [row(YES, one), row(YES, other, calls=True), row(None)]
    least = [min(column) for column in zip(*rows, strict=True)]
    assert roll_call_follows(least)
    assert objection(least) == ""


@given(st.lists(st.tuples(digests, digests), min_size=1, max_size=6))
def test_a_roll_call_tells_what_each_member_holds(held: list[tuple[int, int]]) -> None:
    answers = []
    for turn in range(len(held)):
        rows = [roll_call_row(*(both if member == turn else (0, 0))) for member, both in enumerate(held)]
        answers.append(roll_call_answer([min(column) for column in zip(*rows, strict=True)]))
    assert answers == held


@pytest.mark.parametrize(
    ("held", "wrong"),
    [([5, 5, 6], [2]), ([6, 5, 5], [0]), ([6, 0, 5], [2]), ([5, 6, 6, 5, 7], [1, 2, 4]), ([0, 0], []), ([0, 4], [])],
)
def test_most_members_are_right_and_the_first_of_equals(held: list[int], wrong: list[int]) -> None:
    assert wrong_states(held) == wrong
