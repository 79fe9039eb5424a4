"""What counts as together, and what is said when an expectation does not hold."""

from __future__ import annotations

import pytest

from tests.scenario.language import parse
from tests.scenario.play import Commit, Record, judge


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
        ("all groups at step 4", ""),
        ("all groups at step 5", "g0 is at step 4"),
        ("gapless g1", ""),
        ("gapless g0", "g0 went from step 2 to 4"),
        ("no restart of g1", ""),
        ("at most 2 attempts of g0", ""),
        ("no restart of g0", "it was started 2 times"),
        ("at most 2 steps dropped", ""),
        ("no step dropped", "2 were: 3, 3"),
        ("longest stall under 3 s", ""),
        (
            "longest stall under 2 s",
            "before step 5 nothing went on for 2.60 s",
        ),  # between the first commits of two steps
    ],
)
def test_expectations(expected: str, verdict: str) -> None:
    seen = record(
        (1.0, "g0", 1, 1), (1.2, "g0", 2, 1), (1.4, "g0", 4, 1), (1.9, "g1", 4, 2), (4.0, "g1", 5, 1)
    )  # fmt: skip
    seen.attempts.update(g0=2, g1=1)
    seen.dropped |= {(3, 7), (3, 8)}
    said = [f"s, line 2: expected {expected}, but {verdict}."] if verdict else []
    scenario = parse(f"groups 2\nexpect {expected}", "s")
    assert judge(scenario, seen) == said
    assert judge(scenario, seen, factor=2.0) == (said if "stall" not in expected else [])
