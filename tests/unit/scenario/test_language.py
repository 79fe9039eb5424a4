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
    MostDropped,
    MostLives,
    Pause,
    Start,
    Target,
    Together,
    When,
)

FILES = sorted((Path(__file__).parents[2] / "scenario/files").glob("*.txt"))
END = "\nexpect all groups at step 40"


def deeds(text: str) -> list[tuple[object, object]]:
    return [(d.moment, d.action) for d in parse(text + END, "story").story]


def mistake(text: str) -> str:
    with pytest.raises(ScenarioError) as e:
        parse(text, "story")
    return str(e.value)


def test_settings_have_defaults_and_units() -> None:
    scenario = parse("groups 2, ranks 3\nsteps 50, heartbeat_timeout 800 ms, timeout 2.5 s\nexpect gapless g1", "s")
    assert (scenario.groups, scenario.ranks, scenario.min_replicas, scenario.steps) == (2, 3, 1, 50)
    assert (scenario.heartbeat_timeout, scenario.timeout, scenario.lease) == (0.8, 2.5, None)


def test_every_moment() -> None:
    text = "at step 3 kill g0\n300 ms later kill g1; kill g2\nwhen g1 heals, kill g1\nwhen all are together kill g0"
    assert [moment for moment, _ in deeds(text)] == [
        AtStep(3), Later(0.3), Later(0.0), When("g1", "heals"), Together(),
    ]  # fmt: skip


def test_every_action() -> None:
    text = """
        at step 1 pause g1 for 2 s; pause lighthouse for 50 ms   # a comment
        at step 2 cut g0 from lighthouse for 1 s; cut g0 from g1 for 1 s; cut g0 from everybody for 1 s
        at step 3 lose g2 for 3 s; join g3; leave g1
        at step 4 kill supervisor of g0; kill lighthouse
        2 s later start lighthouse; start supervisor of g0
    """
    lighthouse, supervisor = Target("lighthouse"), Target("supervisor", "g0")
    assert [action for _, action in deeds(text)] == [
        Pause(Target("trainer", "g1"), 2.0), Pause(lighthouse, 0.05),
        Cut("g0", "lighthouse", 1.0), Cut("g0", "g1", 1.0), Cut("g0", "everybody", 1.0),
        Lose("g2", 3.0), Join("g3"), Leave("g1"),
        Kill(supervisor), Kill(lighthouse), Start(lighthouse), Start(supervisor),
    ]  # fmt: skip


def test_every_expectation() -> None:
    text = """steps 20
        expect all groups at step 20; expect gapless g0; expect no restart of g1; expect at most 3 lives of g0
        expect no step dropped; expect at most 1 step dropped; expect longest stall under 700 ms"""
    assert [e.wish for e in parse(text, "s").expectations] == [
        AllAt(20), Gapless("g0"), MostLives("g1", 1), MostLives("g0", 3), MostDropped(0), MostDropped(1), LongestStall(0.7),
    ]  # fmt: skip


def test_a_deed_knows_its_line() -> None:
    (deed,) = parse("groups 2\n\n# why\nat step 3  kill  g1  # bang" + END, "s").story
    assert deed == Deed(4, "at step 3 kill g1", AtStep(3), Kill(Target("trainer", "g1")))


def test_who_should_be_there() -> None:
    text = "at step 1 leave g1\nat step 2 join g3\nat step 3 kill supervisor of g0\n1 s later start supervisor of g0"
    scenario = parse(text + END, "s")
    assert [set(scenario.wanted(n)) for n in range(5)] == [
        {"g0", "g1", "g2"}, {"g0", "g2"}, {"g0", "g2", "g3"}, {"g2", "g3"}, {"g0", "g2", "g3"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gropus 3", "line 1: 'gropus 3' is not understood; it could be 'at step N'"),
        ("groups none", "line 1: groups 'none' is not a whole number above 0."),
        ("groups 2, speed 3", "line 1: 'speed' is not a setting; there are groups, ranks,"),
        ("groups 2\ngroups 2", "line 2: groups is set a second time."),
        ("groups 2, min_replicas 3", "line 1: min_replicas 3 is more than there are groups."),
        ("at step 3 kill g1\nsteps 50", "line 2: settings come before the first thing that happens."),
        ("kill g1", "line 1: say when it happens, as in: at step 12 kill g1."),
        ("1 s later kill g1", "line 1: nothing has happened before that it could be later than."),
        ("at step 3 kill g7", "line 1: there is no g7 at this point; there are g0, g1, g2."),
        ("at step 3 join g1", "line 1: g1 is not new; a newcomer has a name of its own."),
        ("at step 9 kill g1\nat step 3 kill g1", "line 2: step 3 is before step 9, where the story is already."),
        ("at step 3 cut g1 from g1 for 1 s", "line 1: g1 can't be cut from itself."),
        ("at step 3 pause g1 for 0 s", "line 1: pause needs a time above 0."),
        ("at step 3 start lighthouse", "line 1: the lighthouse was not killed before."),
        ("at step 3 kill lighthouse" + END, "line 3: the lighthouse was killed and is never started again; add: 2 s later"),
        ("at step 3 kill g1", "line 2: it expects nothing; add a line such as: expect all groups at step 40."),
        ("expect all groups at step 41", "line 1: the run ends at step 40, before step 41."),
        ("expect gapless g0\nat step 3 kill g1", "line 2: what is expected comes after all that happens."),
        ("only simulated" + END, "line 1: say why, as in: only simulated: it needs a lease of 3 s."),
        ("lease 3 s" + END, "line 3: real processes don't know a lease; add: only simulated: REASON."),
        ("at step 3 kill g0\nwhen g1 reduces kill g1" + END, "line 4: real processes don't know 'when gN reduces'; add"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences_with_the_line(text: str, sentence: str) -> None:
    assert f"story, {sentence}" in mistake(text)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_file_says_why_it_is_there(path: Path) -> None:
    assert read(path).story
    assert path.read_text().startswith("# ")
