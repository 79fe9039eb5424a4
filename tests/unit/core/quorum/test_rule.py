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
from torchft_x.core.quorum.rule import Candidate, Form, QuorumInputs, Wait, form
from torchft_x.core.types import JoinReason, Prepared, Quorum, State, listed

Q1 = quorum(member("a", State(4, 3)), member("b", State(4, 3)), id=10)
DONE = State(5, 10)  # having committed in Q1


def asks(*replica_ids: str, state: State | None = None, since: float = 0.0, **fields: Any) -> tuple[Candidate, ...]:
    return tuple(Candidate(member(r, state or State(), **fields), since=since) for r in replica_ids)


def situation(candidates: Iterable[Candidate], cur: Quorum | None = None, **fields: Any) -> QuorumInputs:
    return QuorumInputs(**{"now": 0.0, "cur": cur, "candidates": tuple(candidates), "join_timeout": 10.0, **fields})


def formed(s: QuorumInputs) -> list[str]:
    decision = form(s)
    return [m.replica_id for m in decision.members]


def waits(s: QuorumInputs) -> str:
    decision = form(s)
    return decision.reason


class TestFirstQuorum:
    def test_all_who_are_alive_have_asked(self) -> None:
        assert formed(situation(asks("b", "a"))) == ["a", "b"]

    def test_nobody_has_asked(self) -> None:
        assert waits(situation(())) == "New quorum not ready, only have 0 participants, need min_replicas 1."

    def test_min_replicas_is_not_met(self) -> None:
        reason = "New quorum not ready, only have 1 participants (a), need min_replicas 2."
        assert waits(situation(asks("a"), min_replicas=2)) == reason

    def test_half_of_the_healthy_is_not_enough(self) -> None:
        s = situation(asks("a", "b"), silent_healthy={"c", "d"}, now=99.0)
        assert "need more than half of 4 healthy groups; not asked yet: c, d." in waits(s)

    def test_more_than_half_waits_for_the_rest_until_the_join_timeout(self) -> None:
        s = situation([*asks("a", since=1.0), *asks("b", since=5.0)], silent_healthy={"c"}, now=10.9)
        assert "not asked yet: c." in waits(s)
        decision = form(s)
        assert decision.until == 11.0  # from the first who asked
        assert formed(situation(s.candidates, silent_healthy={"c"}, now=11.0)) == ["a", "b"]

    def test_announced_groups_are_waited_for_but_count_for_no_half(self) -> None:
        s = situation(asks("a"), absent_groups={"1", "2"}, now=9.9)
        assert "not asked yet: group 1, group 2." in waits(s)
        assert formed(situation(asks("a"), absent_groups={"1", "2"}, now=10.0)) == ["a"]

    def test_it_always_builds_process_groups(self) -> None:
        assert form(situation(asks("a"))) == Form((member("a"),), rebuild=True)


class TestSuccessor:
    def test_R6_all_members_have_asked(self) -> None:
        assert formed(situation(asks("a", "b", state=DONE), Q1)) == ["a", "b"]

    def test_R6_one_has_not_asked(self) -> None:
        assert waits(situation(asks("a", state=DONE), Q1)) == "Waiting for members of q1 to ask: b."

    def test_R6_one_is_lost_and_nothing_else_is_waited_for(self) -> None:
        s = situation(asks("a", state=DONE), Q1, lost={"b"}, silent_healthy={"c", "d", "e"}, absent_groups={"9"})
        assert formed(s) == ["a"]  # neither the half rule nor the join timeout hold survivors up

    def test_R6_newcomers_who_asked_go_in(self) -> None:
        assert formed(situation(asks("n", "b", "a", state=DONE), Q1)) == ["a", "b", "n"]

    def test_min_replicas_holds_for_successors_too(self) -> None:
        assert "only have 1 participants (a)" in waits(situation(asks("a"), Q1, lost={"b"}, min_replicas=2))

    def test_shrink_only_of_one_keeps_newcomers_out(self) -> None:
        candidates = [*asks("a", "n", state=DONE), *asks("b", state=DONE, shrink_only=True)]
        assert formed(situation(candidates, Q1)) == ["a", "b"]

    def test_shrink_only_without_a_quorum_cuts_nothing(self) -> None:
        assert formed(situation(asks("a", "b", shrink_only=True))) == ["a", "b"]

    def test_shrink_only_of_a_newcomer_keeps_no_other_one_out(self) -> None:
        candidates = [*asks("a", "b", "m", state=DONE), *asks("n", shrink_only=True)]
        assert formed(situation(candidates, Q1)) == ["a", "b", "m"]

    def test_shrink_only_of_a_newcomer_keeps_itself_out(self) -> None:
        candidates = [*asks("a", "b", state=DONE), *asks("n", shrink_only=True)]
        assert formed(situation(candidates, Q1)) == ["a", "b"]


class TestSuccession:
    """R9: who may follow."""

    HEALING = quorum(member("a", State(4, 3)), member("b", State(0, 0)), id=10)  # b was still behind

    def test_R9a_a_carrier_follows_although_it_did_not_commit(self) -> None:
        assert formed(situation(asks("a", state=State(4, 3)), Q1, lost={"b"})) == ["a"]

    def test_R9a_membership_is_not_enough(self) -> None:
        s = situation(asks("b"), self.HEALING, lost={"a"})
        assert "No candidate holds the newest state of q1 (step 4 (quorum 3)), and a may still" in waits(s)

    def test_R9a_a_healed_member_follows_once_it_has_committed(self) -> None:
        assert formed(situation(asks("b", state=State(5, 10)), self.HEALING, lost={"a"})) == ["b"]

    def test_R9a_healing_to_the_top_is_not_enough(self) -> None:
        """a may have committed step 5: b took part in it with zeros and nothing to remember it by."""
        s = situation(asks("b", state=State(4, 3)), self.HEALING, lost={"a"})
        assert "a may still commit" in waits(s)
        assert formed(situation(asks("b", state=State(4, 3)), self.HEALING, lost={"a"}, over={"a"})) == ["b"]

    def test_R9a_a_stranger_does_not_whatever_its_state(self) -> None:
        s = situation(asks("n", state=State(9, 9)), Q1, lost={"a", "b"}, over={"a"})
        assert "b may still commit" in waits(s)

    def test_R9a_a_torn_carrier_does_not(self) -> None:
        assert "may still" in waits(situation(asks("a", state=State(4, 3), torn=True), Q1, lost={"b"}))

    def test_R9b_all_outside_are_over(self) -> None:
        decision = form(situation(asks("n"), Q1, lost={"a", "b"}, over={"a", "b"}))
        assert decision == Form((member("n"),), rebuild=True, left=Q1)

    def test_R9b_lost_is_not_over(self) -> None:
        assert "a, b may still commit" in waits(situation(asks("n"), Q1, lost={"a", "b"}))

    def test_R9b_those_inside_need_not_be_over(self) -> None:
        assert formed(situation(asks("b"), self.HEALING, lost={"a"}, over={"a"})) == ["b"]


class TestRebuild:
    """When process groups are built anew."""

    def test_not_for_the_same_members(self) -> None:
        assert form(situation(asks("a", "b", state=DONE), Q1)) == Form(
            (member("a", DONE), member("b", DONE)), rebuild=False
        )

    @pytest.mark.parametrize("reason", [JoinReason.FAILED, JoinReason.REJOINED])
    def test_a_failed_step(self, reason: JoinReason) -> None:
        candidates = (*asks("a", state=DONE), Candidate(member("b", DONE), reason))
        decision = form(situation(candidates, Q1))
        assert decision.rebuild

    def test_a_peers_failed_commit(self) -> None:
        decision = form(situation([*asks("a", state=DONE), *asks("b", commit_failures=1)], Q1))
        assert decision.rebuild

    def test_members_were_told_to_leave_their_collectives(self) -> None:
        decision = form(situation(asks("a", "b", state=DONE), Q1, broken=True))
        assert decision.rebuild

    def test_a_member_less_or_more(self) -> None:
        for names in (["a"], ["a", "b", "c"]):
            decision = form(situation(asks(*names, state=DONE), Q1, lost={"b"}))
            assert decision.rebuild


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
        event("forms a new lineage" if decision.new_lineage else "forms")
        names = [m.replica_id for m in decision.members]
        assert simple_form(s) == (names, decision.rebuild, decision.new_lineage)


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
    assert not decision.new_lineage


def test_M3_a_torn_member_does_not_hold_the_state_that_it_names() -> None:
    """Its state is incomplete, so a copy that a supervisor holds is waited for, though it is older."""
    held = {"b": State(7, 3)}
    torn, whole = asks("a", state=State(9, 3), torn=True), asks("c", state=State(4, 3))
    assert "waiting for group b (step 7" in waits(situation([*torn, *whole], held=held, longest_wait=60.0))
    assert formed(situation(asks("a", state=State(9, 3)), held=held, longest_wait=60.0)) == ["a"]
