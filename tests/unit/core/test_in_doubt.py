"""R14: what members that meet again do with prepared results. States are (step, quorum of the commit)."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import member, quorum
from torchft_x.core.types import Member, Prepared, State

T = State(4, 10)  # where everybody stood in quorum 11
RESULT = Prepared(quorum=11, step=5, digest=77)


def at(name: str, state: State = T, prepared: Prepared | None = None, carried: tuple[int, ...] = (11,)) -> Member:
    return member(f"{name}:1", state, prepared=prepared, carried=carried)


def settled(*members: Member):
    s = quorum(*members, id=12).settled
    return s.top, [m.group_id for m in s.carriers], s.adopted, list(s.late)


COMMITTED = RESULT.state
OLDER, NEWER = Prepared(11, 5, 1), Prepared(13, 5, 2)
A_OLDER = at("a", prepared=OLDER, carried=(11,))
HOLDS, DENIES = at("a", prepared=RESULT), at("b")


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ((at("a"), at("b")), (T, ["a", "b"], None, [])),
        # A kill in the reduction: one that has not prepared proves that nobody committed, also quorums later.
        ((HOLDS, DENIES), (T, ["a", "b"], None, [])),
        ((HOLDS, at("b", carried=(11, 12, 13))), (T, ["a", "b"], None, [])),
        # A kill in the vote: the others commit late, but only the very result; and who holds none is not late.
        ((at("a", COMMITTED, carried=()), at("b", prepared=RESULT)), (COMMITTED, ["a", "b"], None, ["b:1"])),
        ((at("a", COMMITTED, carried=()), at("b", prepared=RESULT), at("c")), (COMMITTED, ["a", "b"], None, ["b:1"])),
        ((at("a", State(5, 13), carried=()), at("b", prepared=RESULT)), (State(5, 13), ["a"], None, [])),
        ((at("a", COMMITTED, carried=()), at("c", State(3, 9), RESULT)), (COMMITTED, ["a"], None, [])),
        # A newcomer heals, and denies nothing.
        ((at("b", prepared=RESULT), at("d", carried=())), (COMMITTED, ["b"], RESULT, [])),
        # Nor does a healer of that quorum: the vote did not wait for it.
        ((at("b", prepared=RESULT), at("c", carried=(12,))), (COMMITTED, ["b"], RESULT, [])),
        # Of several results the newest that nobody denies: b was in 11, and is not prepared for it.
        ((A_OLDER, at("b", prepared=NEWER, carried=(11, 13))), (NEWER.state, ["b"], NEWER, [])),
        (
            (A_OLDER, at("b", prepared=NEWER, carried=(11, 13)), at("c", carried=(13,))),
            (T, ["a", "b", "c"], None, []),
        ),
        ((A_OLDER, at("b", prepared=NEWER, carried=(13,))), (NEWER.state, ["b"], NEWER, [])),
        # Different bits were never committed, and what is prepared for an older step counts for nothing.
        ((HOLDS, at("b", prepared=Prepared(11, 5, 78))), (T, ["a", "b"], None, [])),
        ((at("a", prepared=Prepared(8, 3, 1)), at("b")), (T, ["a", "b"], None, [])),
    ],
)
def test_R14_what_becomes_of_prepared_results(members: tuple[Member, ...], expected: tuple[object, ...]) -> None:
    assert settled(*members) == expected


def test_cut_off_after_the_vote_the_result_is_adopted() -> None:
    assert settled(at("b", prepared=RESULT)) == (COMMITTED, ["b"], RESULT, [])
    assert settled(at("b", prepared=RESULT), at("c", prepared=RESULT)) == (COMMITTED, ["b", "c"], RESULT, [])


@pytest.mark.parametrize("prepared", [None, RESULT])
def test_a_torn_member_has_no_say(prepared: Prepared | None) -> None:
    torn = member("a:1", T, prepared=prepared, torn=True, carried=(11,))
    assert settled(torn, at("b", prepared=RESULT)) == (RESULT.state, ["b"], RESULT, [])
    assert settled(torn) == (State(), [], None, [])
