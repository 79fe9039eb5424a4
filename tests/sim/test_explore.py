"""Everything that can happen in small worlds, and a slice of what can happen in larger ones."""

from __future__ import annotations

import pytest

from tests.sim.untimed.search import Report, Search
from tests.sim.untimed.values import Rules
from tests.sim.untimed.words import story

pytestmark = pytest.mark.timeout(600)  # processor time is what is limited; the machine may be shared


def explore(rules: Rules, *, seconds: float) -> Report:
    search = Search(rules)
    report = search.explore(seconds=seconds)
    assert not report.findings, f"{story(search.model, report.findings[0].actions)}\n{report}"
    return report


@pytest.mark.parametrize("vote", [False, True])
@pytest.mark.parametrize("grants", [False, True])
def test_without_a_fault(vote: bool, grants: bool) -> None:
    assert explore(Rules(steps=2, faults=0, vote=vote, grants=grants), seconds=30).complete


@pytest.mark.parametrize("kind", ["lighthouse", "lease", "leave", "error", "fetch", "call"])
@pytest.mark.parametrize("vote", [False, True])
def test_one_fault_of_a_kind(kind: str, vote: bool) -> None:
    assert explore(Rules(vote=vote, kinds=(kind,)), seconds=60).complete


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_any_one_fault() -> None:
    """Complete: two groups of one rank, one step (and the one after), any one fault at any instant, as our clients train.
    As torchft's do, of one kind at a time: above."""
    assert explore(Rules(vote=True, grants=True), seconds=120).complete


def test_a_slice_of_a_larger_world() -> None:
    explore(Rules(groups=3, steps=2, faults=2, vote=True), seconds=4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_longer_slice() -> None:
    explore(Rules(groups=3, steps=2, faults=2, ranks=2, vote=True), seconds=8)


def test_the_same_world_is_explored_the_same_way() -> None:
    first, second = (explore(Rules(vote=True, kinds=("error",)), seconds=60) for _ in range(2))
    assert (first.states, first.transitions, first.depth) == (second.states, second.transitions, second.depth)


def test_a_path_is_told() -> None:
    search = Search(Rules(groups=1, faults=0))
    search.explore(seconds=10)
    tale = story(search.model, search.path(len(search._parents) - 1))
    assert "a:1 connects to lighthouse 0" in tale
    assert "COMMITS (1, q1): init +1[a]" in tale
