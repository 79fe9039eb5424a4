"""Which members a lighthouse that is one of several must have with it (`core.quorum.acceptors`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from tests.core.scene import member, quorum
from torchft_x.core.quorum.acceptors import PLACES, QuorumIntersection, own_id
from torchft_x.core.types import Quorum

FIRST = 1 << 10
Q = quorum(*(member(r) for r in "abcd"), id=FIRST)


def coalition(
    place: int = 0, *, ended: str = "", of: Quorum = Q, since: int = FIRST, chains: bool = False
) -> QuorumIntersection:
    made = QuorumIntersection(place, since)
    for name in ended:
        made.end(name, of.id, f"chain {name}" if chains else "")
    return made


def test_most_win_and_half_only_where_it_was_issued() -> None:
    assert coalition().wins(Q, "abc")
    assert coalition(1).wins(Q, "abc")
    assert coalition().wins(Q, "ab")
    assert not coalition(1).wins(Q, "ab")
    assert not coalition().wins(Q, "a")


def test_who_issued_it_and_has_forgotten_is_nobody_special() -> None:
    assert not coalition(since=FIRST + PLACES).wins(Q, "ab")


def test_whose_last_words_are_known_are_not_counted() -> None:
    assert not coalition(1, ended="bc").wins(Q, "a")
    assert coalition(1, ended="bcd").wins(Q, "a")
    assert coalition(1, ended="bc").lacking(Q, "a") == ["d"]


def test_when_nobody_is_left_later_lives_of_most_chains_stand_for_them() -> None:
    c = coalition(1, ended="abcd", chains=True)
    for name in "abcdx":
        c.belongs(f"{name}2", f"chain {name}")
    assert not c.wins(Q, ())
    assert not c.wins(Q, ("a2", "b2", "x2"))
    assert c.wins(Q, ("a2", "b2", "d2"))
    assert not coalition(1, ended="abcd").wins(Q, ("a2", "b2", "d2"))  # nothing is known of their chains


def test_it_is_closed_when_most_have_received_a_newer_one() -> None:
    c = coalition(1)
    assert not c.closes(Q, "ab")
    assert c.closes(Q, "abc")
    c.end("d", FIRST + 1)  # it had received a newer one
    assert c.closes(Q, "ab")
    c.end("c", FIRST)  # it had not, and never will
    assert c.closes(Q, "a")


def test_it_is_closed_by_later_lives_when_all_have_ended() -> None:
    c = coalition(1, ended="abcd", chains=True)
    assert not c.closes(Q, ())
    for name in "abc":
        c.belongs(f"{name}2", f"chain {name}")
        c.received(f"{name}2", FIRST + 1)
    assert c.closes(Q, ())


def test_a_later_life_that_has_ended_too_has_received_what_it_has() -> None:
    c = coalition(1, ended="abcd", chains=True)
    for name in "abc":
        c.end(f"{name}2", FIRST + 1, f"chain {name}")
    assert c.closes(Q, ())


def test_what_a_chain_of_lives_has_received_it_does_not_lose_again() -> None:
    c = coalition(1, ended="abcd", chains=True)
    for name in "abc":
        c.belongs(f"{name}2", f"chain {name}")
        c.received(f"{name}2", FIRST + 1)
        c.received(f"{name}2", FIRST)
    assert c.closes(Q, ())


def test_lives_of_which_no_chain_is_known_do_not_stand_for_each_other() -> None:
    c = coalition(1, ended="abcd")
    for name in ("x", "y", "z"):
        c.belongs(name, "")
        c.received(name, FIRST + 1)
    assert not c.wins(Q, "xyz")
    assert not c.closes(Q, ())


def test_a_hello_that_names_no_chain_does_not_take_a_life_out_of_its_chain() -> None:
    c = coalition(1, ended="abcd", chains=True)
    for name in "abc":
        c.belongs(f"{name}2", f"chain {name}")
        c.belongs(f"{name}2", "")
    assert c.wins(Q, ("a2", "b2", "c2"))


@pytest.mark.parametrize(
    ("count", "said"), [(8, "more of m0, m1, m2, m3, m4, m5, m6, m7 come"), (9, "m7 and 1 more come")]
)
def test_the_sentence_stays_one_with_many_members(count: int, said: str) -> None:
    names = [f"m{i}" for i in range(count)]
    q = quorum(*(member(n) for n in names), id=FIRST)
    c = coalition(1)
    assert said in c.sentence(q, c.lacking(q, ()))


def splits(names: str) -> Iterator[tuple[set[str], set[str], set[str], set[str]]]:
    """Members at either of two lighthouses, and those that either does not count. Nobody is at both, and nobody whose
    last words are known at one is at the other: such a member has told of the other's quorum.
    """
    # 0: nowhere; 1: at the first; 2: at the second; 3: ended, known to the first; 4: to the second; 5: to both.
    for where in product(range(6), repeat=len(names)):
        at = {i: {n for n, w in zip(names, where, strict=True) if w == i} for i in range(6)}
        yield at[1], at[2], at[3] | at[5], at[4] | at[5]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_two_lighthouses_never_both_win(size: int) -> None:
    names = "abcde"[:size]
    q = quorum(*(member(r) for r in names), id=FIRST)
    for here, there, ended, ended_there in splits(names):
        one, other = coalition(0, ended="".join(ended)), coalition(1, ended="".join(ended_there))
        assert not (one.wins(q, here) and other.wins(q, there)), (here, there, ended, ended_there)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_who_has_closed_it_has_somebody_that_the_other_needs(size: int) -> None:
    names = "abcde"[:size]
    q = quorum(*(member(r) for r in names), id=FIRST)
    for beyond, there, ended, ended_there in splits(names):
        one, other = coalition(1, ended="".join(ended)), coalition(0, ended="".join(ended_there))
        assert not (one.closes(q, beyond) and other.wins(q, there)), (beyond, there, ended, ended_there)


def test_what_it_has_met_is_not_met_again() -> None:
    older = quorum(member("a"), id=FIRST - PLACES + 1)
    newer = quorum(member("a"), member("b"), id=FIRST + 1, follows=(older,))
    c = QuorumIntersection(0, FIRST)
    assert c.meet((newer,), ()) == [older, newer]
    assert c.meet((older, newer), ()) == []


def test_what_was_open_here_is_not_met_again() -> None:
    c = QuorumIntersection(0, FIRST)
    assert c.meet((), (Q,)) == []
    assert c.meet((Q,), ()) == []


def test_what_its_lighthouse_had_closed_is_not_open_again() -> None:
    old = quorum(member("a"), member("x"), id=FIRST + 1)
    newer = quorum(member("a"), member("b"), id=FIRST + 1 + PLACES, since=FIRST)
    assert QuorumIntersection(0, FIRST).meet((old,), (newer,)) == []
    forgot = quorum(member("a"), member("b"), id=FIRST + 1 + PLACES, since=FIRST + 2)
    assert QuorumIntersection(0, FIRST).meet((old,), (forgot,)) == [old]
    another = quorum(member("a"), member("b"), id=FIRST + 2 + PLACES, since=FIRST)
    assert QuorumIntersection(0, FIRST).meet((old,), (another,)) == [old]


def test_ids_of_two_lighthouses_differ() -> None:
    assert {own_id(n, 0) for n in range(99)}.isdisjoint({own_id(n, 3) for n in range(99)})
    assert all(own_id(n, 3) >= n for n in range(99))
    assert own_id(17, None) == 17
