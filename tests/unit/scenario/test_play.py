"""What counts as together, and what is said when an expectation does not hold."""

from __future__ import annotations

from tests.scenario.language import parse
from tests.scenario.play import Commit, Record, judge, longest_stall


def record(*commits: tuple[float, str, int, int]) -> Record:
    """(time, group, step, participants) each."""
    made = Record()
    for t, group, step, participants in commits:
        made.committed(Commit(t, group, step, 100 + step, participants))
    return made


def verdicts(expected: str, seen: Record, factor: float = 1.0) -> list[str]:
    return judge(parse(f"groups 2\n{expected}", "s"), seen, factor=factor)


def test_together_are_all_and_nobody_else_after_that_moment() -> None:
    seen = record((1.0, "g0", 1, 2), (1.1, "g1", 1, 2), (2.0, "g0", 2, 1), (3.0, "g0", 3, 2))
    assert not seen.together(["g0", "g1"], 0.0 + 1.5)  # g1's last is older
    seen.committed(Commit(3.1, "g1", 3, 103, 2))
    assert seen.together(["g0", "g1"], 1.5)
    assert not seen.together(["g0"], 1.5)  # there was a second one
    assert not seen.together(["g0", "g1", "g2"], 1.5)


def test_all_groups_at_a_step() -> None:
    seen = record((1.0, "g0", 8, 2), (1.0, "g1", 7, 2))
    assert verdicts("expect all groups at step 7", seen) == []
    assert verdicts("expect all groups at step 8", seen) == [
        "s, line 2: expected all groups at step 8, but g1 is at step 7."
    ]


def test_gapless() -> None:
    seen = record((1.0, "g0", 1, 1), (1.0, "g0", 2, 1), (1.0, "g0", 4, 1), (1.0, "g1", 4, 1), (1.0, "g1", 5, 1))
    assert verdicts("expect gapless g1", seen) == []
    assert verdicts("expect gapless g0", seen) == ["s, line 2: expected gapless g0, but g0 went from step 2 to 4."]


def test_lives_and_drops() -> None:
    seen = record((1.0, "g0", 1, 1))
    seen.lives.update(g0=2, g1=1)
    seen.dropped |= {(3, 7), (3, 8)}
    assert verdicts("expect no restart of g1; expect at most 2 lives of g0; expect at most 2 steps dropped", seen) == []
    assert verdicts("expect no restart of g0; expect no step dropped", seen) == [
        "s, line 2: expected no restart of g0, but it was started 2 times.",
        "s, line 2: expected no step dropped, but 2 were: 3, 3.",
    ]


def test_the_longest_stall_is_between_the_first_commits_of_two_steps() -> None:
    seen = record((1.0, "g0", 1, 2), (1.5, "g1", 1, 2), (1.4, "g0", 2, 1), (4.0, "g1", 3, 1), (4.1, "g0", 3, 1))
    assert longest_stall(seen) == (2.6, 3)
    assert verdicts("expect longest stall under 2 s", seen, factor=2.0) == []
    assert verdicts("expect longest stall under 2 s", seen) == [
        "s, line 2: expected longest stall under 2 s, but before step 3 nothing went on for 2.60 s."
    ]
