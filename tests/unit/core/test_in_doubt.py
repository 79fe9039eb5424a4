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


def test_nothing_is_prepared() -> None:
    assert settled(at("a"), at("b")) == (T, ["a", "b"], None, [])


def test_kill_in_the_reduction_one_that_has_not_prepared_proves_that_nobody_committed() -> None:
    assert settled(at("a", prepared=RESULT), at("b")) == (T, ["a", "b"], None, [])


def test_kill_in_the_vote_the_others_commit_late() -> None:
    committed = RESULT.state
    assert settled(at("a", committed, carried=()), at("b", prepared=RESULT)) == (committed, ["a", "b"], None, ["b:1"])


def test_cut_off_after_the_vote_the_result_is_adopted() -> None:
    assert settled(at("b", prepared=RESULT)) == (RESULT.state, ["b"], RESULT, [])
    assert settled(at("b", prepared=RESULT), at("c", prepared=RESULT)) == (RESULT.state, ["b", "c"], RESULT, [])


def test_a_member_that_was_not_in_that_quorum_denies_nothing_and_heals() -> None:
    newcomer = at("d", carried=())
    assert settled(at("b", prepared=RESULT), newcomer) == (RESULT.state, ["b"], RESULT, [])


def test_a_healer_of_that_quorum_denies_nothing() -> None:
    """The vote did not wait for it, so that it holds no result says nothing about a commit."""
    healed = at("c", carried=(12,))
    assert settled(at("b", prepared=RESULT), healed)[2] == RESULT


def test_the_newest_that_nobody_denies() -> None:
    older, newer = Prepared(11, 5, 1), Prepared(13, 5, 2)
    a = at("a", prepared=older, carried=(11,))
    b = at("b", prepared=newer, carried=(11, 13))  # was in 11 and is not prepared for it
    assert settled(a, b) == (newer.state, ["b"], newer, [])
    c = at("c", carried=(13,))  # denies the newer one; the older one is denied by b
    assert settled(a, b, c) == (T, ["a", "b", "c"], None, [])


def test_of_two_that_nobody_denies_the_newer_one() -> None:
    older, newer = Prepared(11, 5, 1), Prepared(13, 5, 2)
    a, b = at("a", prepared=older, carried=(11,)), at("b", prepared=newer, carried=(13,))
    assert settled(a, b) == (newer.state, ["b"], newer, [])


def test_a_denial_is_remembered_over_quorums() -> None:
    assert settled(at("a", prepared=RESULT), at("b", carried=(11, 12, 13)))[2] is None


def test_different_bits_were_never_committed() -> None:
    assert settled(at("a", prepared=RESULT), at("b", prepared=Prepared(11, 5, 78)))[:3] == (T, ["a", "b"], None)


def test_one_step_behind_with_nothing_prepared_is_not_late() -> None:
    committed = RESULT.state
    members = at("a", committed, carried=()), at("b", prepared=RESULT), at("c")
    assert settled(*members) == (committed, ["a", "b"], None, ["b:1"])


def test_late_is_for_the_very_result_only() -> None:
    committed = State(5, 13)
    top, carriers, adopted, late = settled(at("a", committed, carried=()), at("b", prepared=RESULT))
    assert (top, carriers, adopted, late) == (committed, ["a"], None, [])
    behind = at("c", State(3, 9), Prepared(11, 5, 77))
    assert settled(at("a", RESULT.state, carried=()), behind)[1] == ["a"]


def test_what_is_prepared_for_an_older_step_counts_for_nothing() -> None:
    old = Prepared(8, 3, 1)
    assert settled(at("a", prepared=old), at("b")) == (T, ["a", "b"], None, [])


@pytest.mark.parametrize("prepared", [None, RESULT])
def test_a_torn_member_has_no_say(prepared: Prepared | None) -> None:
    torn = member("a:1", T, prepared=prepared, torn=True, carried=(11,))
    assert settled(torn, at("b", prepared=RESULT)) == (RESULT.state, ["b"], RESULT, [])
    assert settled(torn) == (State(), [], None, [])
