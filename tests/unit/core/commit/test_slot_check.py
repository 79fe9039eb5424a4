"""Which slot is computed by several groups, and which group is faulty if their gradients differ."""

from __future__ import annotations

from collections import Counter

import pytest

from torchft_x.core.commit.slot_check import (
    CheckPhase,
    CheckVerdict,
    SlotCheck,
    compared_slot,
    compares_whole_state,
    is_due,
    verdict,
)
from torchft_x.core.data.deal import Claim, Deal, deal
from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.types import State

EVERY = 4
OPTIONS = DataOptions(Policy.STRICT, slots=12, batch=2, reproducible=True, check_every=EVERY)
DUE = State(2 * EVERY + 1, 70)
RIGHT, WRONG, OTHER = 5, 6, 7


def dealt(groups: int) -> Deal:
    return deal(OPTIONS, [Claim()] * groups)


def computing(checks: list[SlotCheck], state: State = DUE) -> list[int]:
    """Return the groups that compute the compared slot."""
    found = [c.slot(state, OPTIONS, dealt(len(checks)), g) for g, c in enumerate(checks)]
    assert set(found) <= {None, compared_slot(state, OPTIONS)}
    return [g for g, slot in enumerate(found) if slot is not None]


class Job:
    """Groups that vote on one step again and again."""

    def __init__(self, groups: int) -> None:
        self.checks = {f"g{g}:0": SlotCheck() for g in range(groups)}

    def attempt(self, computes: dict[int, int]) -> tuple[str, ...]:
        """Vote once: the groups whose turn it is report RIGHT, or what `computes` says. Return who is wrong."""
        names = list(self.checks)
        turn = computing(list(self.checks.values()))
        digests = {name: computes.get(g, RIGHT) if g in turn else 0 for g, name in enumerate(names)}
        verdicts = [check.report(DUE, digests) for check in self.checks.values()]
        if len({d for d in digests.values() if d}) > 1:
            for check in self.checks.values():
                check.advance(DUE)
        return max(verdicts, key=lambda v: v.right).wrong


def test_nothing_is_compared_between_two_checks() -> None:
    assert [s for s in range(20) if is_due(State(s, 1), OPTIONS)] == [1, 5, 9, 13, 17]
    assert computing([SlotCheck()] * 3, State(DUE.step + 1, 70)) == []


def test_two_groups_compute_a_slot_of_one_of_them() -> None:
    for step in range(1, 200 * EVERY, EVERY):
        for groups in (2, 3, 7):
            state = State(step, 1)
            pair = computing([SlotCheck() for _ in range(groups)], state)
            assert len(pair) == 2
            assert sum(compared_slot(state, OPTIONS) in range(*r) for g in pair for r in dealt(groups).share(g)) == 1


@pytest.mark.parametrize("groups", [2, 3, 5, 12])
def test_each_group_has_its_turn_soon(groups: int) -> None:
    """The owners alone visit all groups within two rounds."""
    last = Counter[int]()
    for nth in range(100 * groups):
        for g in computing([SlotCheck() for _ in range(groups)], State(nth * EVERY + 1, 1)):
            assert nth - last[g] <= 2 * groups
            last[g] = nth
    assert len(last) == groups


def test_a_group_alone_or_without_a_slot_compares_nothing() -> None:
    assert computing([SlotCheck()]) == []
    assert SlotCheck().slot(DUE, OPTIONS, dealt(3), None) is None
    many = dealt(13)
    assert [SlotCheck().slot(DUE, OPTIONS, many, g) for g in range(13) if not many.share(g)] == [None]


@pytest.mark.parametrize("groups", [3, 4, 9])
def test_the_faulty_one_of_three_or_more_is_named(groups: int) -> None:
    faulty = computing([SlotCheck()] * groups)[1]
    job = Job(groups)
    assert job.attempt({faulty: WRONG}) == ()
    assert computing(list(job.checks.values())) == list(range(groups)), "all compute it now"
    assert job.attempt({faulty: WRONG}) == (f"g{faulty}:0",)
    assert computing(list(job.checks.values())) == [], "the step is computed without a comparison"


@pytest.mark.parametrize("groups", [2, 3])
def test_a_group_that_was_wrong_once_is_named(groups: int) -> None:
    """Two groups are enough: the faulty one contradicts itself."""
    faulty = computing([SlotCheck()] * groups)[0]
    job = Job(groups)
    job.attempt({faulty: WRONG})
    assert job.attempt({}) == (f"g{faulty}:0",)


def test_a_group_that_computes_something_else_each_time_is_named() -> None:
    job = Job(2)
    job.attempt({1: WRONG})
    assert job.attempt({1: OTHER}) == ("g1:0",)


def test_two_groups_that_disagree_for_ever_are_not_settled() -> None:
    job = Job(2)
    job.attempt({1: WRONG})
    assert job.attempt({1: WRONG}) == ()
    assert computing(list(job.checks.values())) == []


@pytest.mark.parametrize("lost", [0, 1])
def test_one_of_the_two_dies_before_it_is_settled(lost: int) -> None:
    """Whether that is the faulty one or the other, a third says it."""
    pair = computing([SlotCheck()] * 3)
    faulty = f"g{pair[0]}:0"
    job = Job(3)
    job.attempt({pair[0]: WRONG})
    del job.checks[f"g{pair[lost]}:0"]
    computes = {list(job.checks).index(faulty): WRONG} if faulty in job.checks else {}
    assert job.attempt(computes) == (faulty,)


def test_a_member_that_joins_in_between_computes_that_slot_or_none() -> None:
    job = Job(2)
    job.attempt({1: WRONG})
    job.checks["g2:0"] = SlotCheck()
    turn = computing(list(job.checks.values()))
    assert {0, 1} <= set(turn)
    found = job.attempt({1: WRONG})
    assert found == (("g1:0",) if 2 in turn else ())


def test_two_attempts_of_a_group_are_one_witness() -> None:
    assert verdict({"a:0": {WRONG}, "a:1": {WRONG}, "b:0": {RIGHT}}) == CheckVerdict()
    assert verdict({"a:0": {WRONG}, "a:1": {RIGHT}, "b:0": {RIGHT}}) == CheckVerdict(("a:0",), 1)
    assert verdict({"a:0": {WRONG}, "a:1": {WRONG}, "b:0": {RIGHT}, "c:0": {RIGHT}}).wrong == ("a:0", "a:1")


@pytest.mark.parametrize(
    ("digests", "wrong"),
    [
        ([{RIGHT}, {RIGHT}], []),
        ([{1}, {2}, {3}], []),
        ([{1, 4}, {2, 4}, {4}], []),  # two contradict themselves: the kernels may not be deterministic
        ([{1, 2}, {3, 4}], []),
        ([{RIGHT}, {WRONG}, {OTHER}, {RIGHT}], [1, 2]),
        ([{RIGHT}, {WRONG}, {WRONG}, {RIGHT}], []),
    ],
)
def test_what_no_majority_says_is_not_said(digests: list[set[int]], wrong: list[int]) -> None:
    assert verdict({f"g{g}:0": d for g, d in enumerate(digests)}).wrong == tuple(f"g{g}:0" for g in wrong)


def test_another_state_begins_anew() -> None:
    check = SlotCheck()
    check.report(DUE, {"a:0": RIGHT, "b:0": WRONG})
    check.advance(DUE)
    assert check.phase(DUE) is CheckPhase.ALL
    assert check.phase(State(DUE.step, 71)) is CheckPhase.PAIR
    assert check.report(State(DUE.step, 71), {"a:0": OTHER, "b:0": OTHER}) == CheckVerdict((), 2)


def test_a_group_reports_what_it_has_computed_before_in_the_step() -> None:
    check = SlotCheck()
    assert check.digest(DUE, 0) == 0
    assert check.digest(DUE, WRONG) == WRONG
    check.advance(DUE)
    assert check.digest(DUE, RIGHT) == check.digest(DUE, 0) == RIGHT
    assert check.digest(State(DUE.step, 71), 0) == 0


def test_states_that_differ_explain_gradients_that_do() -> None:
    check = SlotCheck()
    check.report(DUE, {"a:0": RIGHT, "b:0": WRONG})
    check.advance(DUE)
    check.reset()
    assert check.phase(DUE) is CheckPhase.PAIR
    assert check.report(DUE, {"a:0": RIGHT, "b:0": RIGHT}) == CheckVerdict((), 2)


def test_the_whole_state_is_compared_once_gradients_have_differed() -> None:
    """In other steps with a check nothing is, as another member may compare all of it."""
    check = SlotCheck()
    assert compares_whole_state(check, State(EVERY, 1), OPTIONS) is None
    assert compares_whole_state(check, DUE, OPTIONS) is False
    for _ in range(2):
        check.advance(DUE)
        assert compares_whole_state(check, DUE, OPTIONS) is True
