"""What counts as together, and what is said when an expectation does not hold."""

from __future__ import annotations

import pytest

from tests.scenario.play import Commit, Record, judge
from tests.scenario.stories import at, scenario
from tests.scenario.values import (
    THE_LIGHTHOUSE,
    AtStep,
    Gapless,
    Join,
    Kill,
    Leave,
    LongestStall,
    MostAttempts,
    MostDropped,
    Start,
    Wish,
    supervisor,
    trainer,
)


def record(*commits: tuple[float, str, int, int]) -> Record:
    """(time, group, step, participants) each."""
    made = Record()
    for t, group, step, participants in commits:
        made.committed(Commit(t, group, step, 100 + step, participants))
    return made


def test_together_are_all_and_nobody_else_after_that_moment() -> None:
    seen = record((1.0, "g0", 1, 2), (1.1, "g1", 1, 2), (2.0, "g0", 2, 1), (3.0, "g0", 3, 2))
    assert not seen.together(["g0", "g1"], 0.0 + 1.5)  # g1's last is older
    seen.committed(Commit(3.1, "g1", 3, 103, 2))
    assert seen.together(["g0", "g1"], 1.5)
    assert not seen.together(["g0"], 1.5)  # there was a second one
    assert not seen.together(["g0", "g1", "g2"], 1.5)


@pytest.mark.parametrize(
    ("expected", "verdict"),
    [
        (Gapless("g1"), ""),
        (Gapless("g0"), "g0 went from step 2 to 4"),
        (MostAttempts("g1", 1), ""),
        (MostAttempts("g0", 2), ""),
        (MostAttempts("g0", 1), "it was started 2 times"),
        (MostDropped(2), ""),
        (MostDropped(0), "2 were: 3, 3"),
        (LongestStall(3), ""),
        (LongestStall(2), "before step 5 nothing went on for 2.60 s"),  # between the first commits of two steps
    ],
)
def test_expectations(expected: Wish, verdict: str) -> None:
    seen = record(
        (1.0, "g0", 1, 1), (1.2, "g0", 2, 1), (1.4, "g0", 4, 1), (1.9, "g1", 4, 2), (4.0, "g1", 5, 1)
    )  # fmt: skip
    seen.attempts.update(g0=2, g1=1)
    seen.dropped |= {(3, 7), (3, 8)}
    said = [f"s: expected {expected}, but {verdict}."] if verdict else []
    story = scenario("s", expect=[expected])
    assert judge(story, seen) == said
    assert judge(story, seen, factor=2.0) == ([] if isinstance(expected, LongestStall) else said)


def test_the_groups_that_are_expected_after_each_deed() -> None:
    story = scenario(
        "s",
        at(AtStep(1), Join("g2"), Leave("g1"), Kill(trainer("g0"))),
        at(AtStep(4), Kill(supervisor("g0")), Kill(THE_LIGHTHOUSE), Start(THE_LIGHTHOUSE), Start(supervisor("g0"))),
        expect=[],
        groups=2,
    )
    expected = [story.wanted(n) for n in (0, 1, 2, 4, 7)]
    assert list(map(set, expected)) == [{"g0", "g1"}, {"g0", "g1", "g2"}, {"g0", "g2"}, {"g2"}, {"g0", "g2"}]
