"""What each outcome of a step does to the position in the data (the table in docs/dev/design.md, section Data)."""

from __future__ import annotations

import pytest

from torchft_x.core.commit.step import Step
from torchft_x.core.data.deal import Claim, Deal, deal
from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.data.state import DataState
from torchft_x.core.types import Computed, Part, Prepared, Ranges, State

OPTIONS = DataOptions(Policy.CONSTANT, slots=4, batch=1)
FIRST, TOP = DataState(0, 100, cursor=40), State(4, 3)
BOTH = deal(OPTIONS, [Claim(), Claim()])
ALONE = deal(OPTIONS, [Claim(((0, 2),))])
"""Deal after the second of two groups was lost."""


def running(slots: Deal = BOTH, size: int = 2) -> Step:
    """Return a step in quorum 7, whose rank is number 0."""
    step = Step(min_replica_size=1)
    step.deal_data(DataState(0, 100), OPTIONS)
    step.restore(TOP, 0, FIRST)
    step.ask()
    step.begin(7, TOP, 0, size, deal=slots)
    return step


@pytest.mark.parametrize(("slots", "cursor"), [(BOTH, 44), (ALONE, 42)])
def test_a_commit_moves_past_the_slots_of_its_quorum(slots: Deal, cursor: int) -> None:
    step = running(slots)
    step.vote()
    step.conclude(True)
    assert step.data == DataState(0, 100, cursor=cursor)


@pytest.mark.parametrize("undecided", [False, True])
def test_a_drop_stays(undecided: bool) -> None:
    step = running()
    vote = step.vote()
    step.conclude(False, "why", undecided=undecided)
    if undecided:
        step.ask()
        step.begin(8, TOP, 0, 1, deal=ALONE)
        step.drop(vote, "why")
    assert step.data == FIRST


def test_a_late_commit_moves_past_the_slots_of_the_quorum_in_which_it_was_reduced() -> None:
    step = running(ALONE)
    step.vote()
    step.conclude(False, "no answer", undecided=True)
    step.ask()
    step.begin(8, State(5, 7), 0, 2, commit=Prepared(7, 5, 99), deal=BOTH)
    assert (step.data, step.deal) == (DataState(0, 100, cursor=42), BOTH)


def test_a_heal_brings_the_sources_position() -> None:
    step = running()
    step.healed(TOP, 9, DataState(0, 100, cursor=80))
    assert step.data == DataState(0, 100, cursor=80)


@pytest.mark.parametrize("kept", [((0, 1),), ((2, 4),), None])
def test_gradients_of_other_slots_are_not_reduced_again(kept: Ranges | None) -> None:
    """The number of the group says nothing."""
    part = Part(1, ("z:1", "a:1"))

    def again(slots: Ranges | None) -> bool:
        return running(ALONE, 1).may_redo_with(Computed(TOP, part, slots), Part(0, ("a:1",)), all_keep=False)

    assert again(((0, 2),))
    assert not again(kept)
