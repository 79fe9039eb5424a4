"""The formation decision: each rule by example, then against the simple second implementation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.unit.core.scene import member, quorum
from tests.unit.core.simple_formation import simple_form
from torchft_x.core.quorum import Candidate, Form, QuorumInputs, Wait, form
from torchft_x.core.types import JoinReason, Prepared, Quorum, State, listed

Q1 = quorum(member("a", State(4, 3)), member("b", State(4, 3)), id=10)
DONE = State(5, 10)  # having committed in Q1


def asks(*replica_ids: str, state: State | None = None, since: float = 0.0, **fields: Any) -> tuple[Candidate, ...]:
    return tuple(Candidate(member(r, state or State(), **fields), since=since) for r in replica_ids)


def situation(candidates: Iterable[Candidate], cur: Quorum | None = None, **fields: Any) -> QuorumInputs:
    return QuorumInputs(**{"now": 0.0, "cur": cur, "candidates": tuple(candidates), "join_timeout": 10.0, **fields})


EARLY = (*asks("a", since=1.0), *asks("b", since=5.0))


def formed(s: QuorumInputs) -> list[str]:
    decision = form(s)
    return [m.replica_id for m in decision.members]


def waits(s: QuorumInputs) -> str:
    decision = form(s)
    return decision.reason


HEALING = quorum(member("a", State(4, 3)), member("b", State(0, 0)), id=10)  # b was still behind
HEALTHY = {"c", "d", "e"}

# (situation, the members of the quorum that is formed, or a part of the reason why none is)
FIRST: list[tuple[QuorumInputs, list[str] | str]] = [
    (situation(asks("b", "a")), ["a", "b"]),
    (situation(()), "New quorum not ready, only have 0 participants, need min_replicas 1."),
    (situation(asks("a"), min_replicas=2), "New quorum not ready, only have 1 participants (a), need min_replicas 2."),
    # Half of the healthy is not enough; more than half waits for the rest until the join timeout.
    (
        situation(asks("a", "b"), silent_healthy={"c", "d"}, now=99.0),
        "need more than half of 4 healthy groups; not asked yet: c, d.",
    ),
    (situation(EARLY, silent_healthy={"c"}, now=10.9), "not asked yet: c."),
    (situation(EARLY, silent_healthy={"c"}, now=11.0), ["a", "b"]),
    # Announced groups are waited for but count for no half.
    (situation(asks("a"), absent_groups={"1", "2"}, now=9.9), "not asked yet: group 1, group 2."),
    (situation(asks("a"), absent_groups={"1", "2"}, now=10.0), ["a"]),
    (situation(asks("a", "b", shrink_only=True)), ["a", "b"]),  # without a quorum it cuts nothing
]
SUCCESSORS: list[tuple[QuorumInputs, list[str] | str]] = [
    (situation(asks("a", "b", state=DONE), Q1), ["a", "b"]),
    (situation(asks("a", state=DONE), Q1), "Waiting for members of q1 to ask: b."),
    # Neither the half rule nor the join timeout hold survivors up.
    (situation(asks("a", state=DONE), Q1, lost={"b"}, silent_healthy=HEALTHY, absent_groups={"9"}), ["a"]),
    (situation(asks("n", "b", "a", state=DONE), Q1), ["a", "b", "n"]),
    (situation(asks("a"), Q1, lost={"b"}, min_replicas=2), "only have 1 participants (a)"),
    # Shrink-only of a member keeps all newcomers out, of a newcomer only itself.
    (situation([*asks("a", "n", state=DONE), *asks("b", state=DONE, shrink_only=True)], Q1), ["a", "b"]),
    (situation([*asks("a", "b", "m", state=DONE), *asks("n", shrink_only=True)], Q1), ["a", "b", "m"]),
    (situation([*asks("a", "b", state=DONE), *asks("n", shrink_only=True)], Q1), ["a", "b"]),
]
# R9 (a): a carrier follows although it did not commit, and a healed member once it has committed.
FOLLOWERS: list[tuple[QuorumInputs, list[str] | str]] = [
    (situation(asks("a", state=State(4, 3)), Q1, lost={"b"}), ["a"]),
    (situation(asks("b", state=DONE), HEALING, lost={"a"}), ["b"]),
    (situation(asks("a", state=State(4, 3), torn=True), Q1, lost={"b"}), "may still"),
    (situation(asks("n"), Q1, lost={"a", "b"}), "a, b may still commit"),  # R9 (b): lost is not over
    (situation(asks("b"), HEALING, lost={"a"}, over={"a"}), ["b"]),  # those inside need not be over
]


@pytest.mark.parametrize(("inputs", "expected"), FIRST + SUCCESSORS + FOLLOWERS)
def test_R6_R9_who_forms_a_quorum(inputs: QuorumInputs, expected: list[str] | str) -> None:
    if isinstance(expected, str):
        assert expected in waits(inputs)
    else:
        assert formed(inputs) == expected


class TestSuccession:
    """R9 (a): who may not follow (tests.sim.variants names each of these)."""

    def test_R9a_membership_is_not_enough(self) -> None:
        s = situation(asks("b"), HEALING, lost={"a"})
        assert "No candidate holds the newest state of q1 (step 4 (quorum 3)), and a may still" in waits(s)

    def test_R9a_healing_to_the_top_is_not_enough(self) -> None:
        """a may have committed step 5: b took part in it with zeros and nothing to remember it by."""
        s = situation(asks("b", state=State(4, 3)), HEALING, lost={"a"})
        assert "a may still commit" in waits(s)
        assert formed(replace(s, over=frozenset({"a"}))) == ["b"]

    def test_R9a_a_stranger_does_not_whatever_its_state(self) -> None:
        s = situation(asks("n", state=State(9, 9)), Q1, lost={"a", "b"}, over={"a"})
        assert "b may still commit" in waits(s)


def test_the_join_timeout_counts_from_the_first_who_asked() -> None:
    decision = form(situation(EARLY, silent_healthy={"c"}, now=10.9))
    assert decision.until == 11.0


def test_R9b_a_new_lineage_begins_when_all_outside_are_over() -> None:
    decision = form(situation(asks("n"), Q1, lost={"a", "b"}, over={"a", "b"}))
    assert decision == Form((member("n"),), rebuild=True, left=Q1)


@pytest.mark.parametrize(
    ("inputs", "rebuild"),
    [
        (situation(asks("a")), True),  # the first quorum
        (situation(asks("a", "b", state=DONE), Q1), False),
        (situation((*asks("a", state=DONE), Candidate(member("b", DONE), JoinReason.FAILED)), Q1), True),
        (situation((*asks("a", state=DONE), Candidate(member("b", DONE), JoinReason.REJOINED)), Q1), True),
        (situation([*asks("a", state=DONE), *asks("b", commit_failures=1)], Q1), True),  # of a peer's client
        (situation(asks("a", "b", state=DONE), Q1, broken=True), True),  # members were told to leave their collectives
        (situation(asks("a", state=DONE), Q1, lost={"b"}), True),
        (situation(asks("a", "b", "c", state=DONE), Q1), True),
    ],
)
def test_when_process_groups_are_built_anew(inputs: QuorumInputs, rebuild: bool) -> None:
    members = tuple(sorted((c.member for c in inputs.candidates), key=lambda m: m.replica_id))
    assert form(inputs) == Form(members, rebuild=rebuild)


def test_lists_stay_short() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(i) for i in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


# --- against the simple implementation -------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "d", "e"]
some_names = st.frozensets(st.sampled_from(NAMES))
states = st.builds(State, st.integers(0, 2), st.integers(0, 1))
members = st.builds(
    lambda name, state, torn, shrink, failures: member(
        name, state, torn=torn, shrink_only=shrink, commit_failures=failures
    ),
    st.sampled_from(NAMES),
    states,
    st.integers(0, 5).map(lambda n: n == 0),
    st.integers(0, 5).map(lambda n: n == 0),
    st.sampled_from([0, 0, 0, 1]),
)
candidates = st.lists(
    st.builds(Candidate, members, st.sampled_from(list(JoinReason)), st.floats(0, 5)),
    unique_by=lambda c: c.member.replica_id,
    max_size=5,
)
past = st.lists(members, unique_by=lambda m: m.replica_id, min_size=1, max_size=5).map(lambda ms: quorum(*ms))


@st.composite
def situations(draw: st.DrawFn) -> QuorumInputs:
    asked = draw(candidates)
    names = {c.member.replica_id for c in asked}
    return QuorumInputs(
        now=draw(st.floats(0, 10)),
        cur=(cur := draw(st.none() | past)),
        open=tuple(draw(st.lists(past, max_size=2))) if cur is not None else (),
        candidates=tuple(asked),
        asked_since=draw(st.floats(0, 5) | st.just(inf)),
        lost=draw(some_names) - names,
        over=draw(some_names),
        broken=draw(st.booleans()),
        silent_healthy=draw(some_names) - names,
        absent_groups=draw(st.frozensets(st.sampled_from(["7", "8"]))),
        held=draw(
            st.dictionaries(st.sampled_from(["7", "8"]), st.builds(State, st.integers(0, 12), st.integers(0, 12)))
        ),
        longest_wait=draw(st.floats(0, 8)),
        min_replicas=draw(st.integers(1, 3)),
        join_timeout=draw(st.floats(0, 5)),
    )


@settings(max_examples=100, deadline=None)
@given(situations())
def test_the_simple_implementation_agrees(s: QuorumInputs) -> None:
    decision = form(s)
    if isinstance(decision, Wait):
        event("waits")
        assert simple_form(s) is None, decision.reason
        assert decision.reason.endswith(".")
    else:
        event("forms a new lineage" if decision.left is not None else "forms")
        names = [m.replica_id for m in decision.members]
        assert simple_form(s) == (names, decision.rebuild, decision.left is not None)


@settings(max_examples=50, deadline=None)
@given(situations())
def test_the_order_of_candidates_does_not_matter(s: QuorumInputs) -> None:
    turned = QuorumInputs(**{f: getattr(s, f) for f in s.__dataclass_fields__} | {"candidates": s.candidates[::-1]})
    assert form(turned) == form(s)


def test_a_carrier_that_has_not_adopted_yet_follows_nothing() -> None:
    """A1 (R9, R14): q adopts what a and b hold. a has received it, committed and is away, b has not, and c denies: if
    b could follow q by its name alone, b and c would reduce a committed step again."""
    at, held = State(4, 3), Prepared(quorum=10, step=5, digest=77)
    q = quorum(member("a", at, prepared=held), member("b", at, prepared=held), id=11)
    assert q.top == State(5, 10)
    back = asks("b", state=at, prepared=held, carried=(10,))
    denies = asks("c", state=at, carried=(10,))
    s = situation([*back, *denies], q, lost={"a"})
    assert "a may still commit" in waits(s)
    assert formed(replace(s, over=frozenset({"a"}))) == ["b", "c"]
    # With a, who knows that it was committed, or b, once it has: nothing is lost.
    assert formed(situation([*back, *denies, *asks("a", state=q.top)], q)) == ["a", "b", "c"]
    assert formed(replace(s, candidates=(*asks("b", state=q.top), *denies))) == ["b", "c"]
    # All of its members are here, and none has received it: that is no new lineage.
    decision = form(situation([*back, *asks("a", state=at, prepared=held, carried=(10,)), *denies], q))
    assert decision.left is None


def test_M3_a_torn_member_does_not_hold_the_state_that_it_names() -> None:
    """Its state is incomplete, so a copy that a supervisor holds is waited for, though it is older."""
    held = {"b": State(7, 3)}
    torn, whole = asks("a", state=State(9, 3), torn=True), asks("c", state=State(4, 3))
    assert "waiting for group b (step 7" in waits(situation([*torn, *whole], held=held, longest_wait=60.0))
    assert formed(situation(asks("a", state=State(9, 3)), held=held, longest_wait=60.0)) == ["a"]
