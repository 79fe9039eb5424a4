"""What can be said in a scenario file, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenario.language import ScenarioError, parse, read
from tests.scenario.values import (
    AllAt,
    AtStep,
    Cut,
    Deed,
    Gapless,
    Join,
    Kill,
    Later,
    Leave,
    LongestStall,
    Lose,
    MostAttempts,
    MostDropped,
    Pause,
    Start,
    Target,
    Together,
    When,
)

FILES = sorted((Path(__file__).parents[2] / "scenario/files").glob("*.txt"))


def test_every_sentence() -> None:
    scenario = parse(
        """groups 4, heartbeat_timeout 800 ms
        steps 50, timeout 2.5 s
        at step 1 pause g1 for 2 s; 50 ms later pause lighthouse for 50 ms   # a comment
        when g1 heals, cut g0 from lighthouse for 1 s; cut g0 from g1 for 1 s; cut g0 from everybody for 1 s
        when all are together lose g2 for 3 s; join g4; leave g1; kill g0
        at step 4 kill supervisor of g0; kill lighthouse; start lighthouse; start supervisor of g0
        expect all groups at step 20; expect gapless g0; expect no restart of g1; expect at most 3 attempts of g0
        expect no step dropped; expect at most 1 step dropped; expect longest stall under 700 ms""",
        "s",
    )
    assert (scenario.groups, scenario.steps, scenario.heartbeat_timeout, scenario.timeout) == (4, 50, 0.8, 2.5)
    at_once, lighthouse, supervisor = Later(0.0), Target("lighthouse"), Target("supervisor", "g0")
    assert [(d.moment, d.action) for d in scenario.story] == [
        (AtStep(1), Pause(Target("trainer", "g1"), 2.0)), (Later(0.05), Pause(lighthouse, 0.05)),
        (When("g1", "heals"), Cut("g0", "lighthouse", 1.0)),
        (at_once, Cut("g0", "g1", 1.0)), (at_once, Cut("g0", "everybody", 1.0)),
        (Together(), Lose("g2", 3.0)), (at_once, Join("g4")), (at_once, Leave("g1")),
        (at_once, Kill(Target("trainer", "g0"))), (AtStep(4), Kill(supervisor)), (at_once, Kill(lighthouse)),
        (at_once, Start(lighthouse)), (at_once, Start(supervisor)),
    ]  # fmt: skip
    assert scenario.story[0] == Deed(3, "at step 1 pause g1 for 2 s", AtStep(1), Pause(Target("trainer", "g1"), 2.0))
    assert [e.wish for e in scenario.expectations] == [
        AllAt(20), Gapless("g0"), MostAttempts("g1", 1), MostAttempts("g0", 3), MostDropped(0), MostDropped(1),
        LongestStall(0.7),
    ]  # fmt: skip
    assert [set(scenario.wanted(n)) for n in (0, 7, 8, 10, 13)] == [
        {"g0", "g1", "g2", "g3"}, {"g0", "g1", "g2", "g3", "g4"}, {"g0", "g2", "g3", "g4"}, {"g2", "g3", "g4"},
        {"g0", "g2", "g3", "g4"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("groups 2\ngropus 3", "s, line 2: 'gropus 3' is not understood."),
        ("groups none", "s, line 1: 'groups none' is not understood."),
        ("at step 3 leave g1\nat step 4 kill g1\nexpect gapless g0", "s, line 2: there is no g1 at this point."),
        ("at step 3 kill g1", "s expects nothing; add a line such as: expect all groups at step 40."),
    ],
)
def test_mistakes_are_sentences(text: str, sentence: str) -> None:
    with pytest.raises(ScenarioError) as e:
        parse(text, "s")
    assert str(e.value) == sentence


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_file_says_why_it_is_there(path: Path) -> None:
    assert read(path).story
    assert path.read_text().startswith("# ")
