"""observe/console, Narrator: whose lines are printed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from torchft_x import env
from torchft_x.core.types import group_of, readable
from torchft_x.observe.console import TYPICAL, Narrator
from torchft_x.observe.events import EventLog

ONE, OTHER = "1:b6e4153e-12f2-4290-96a8-dc215ba7e2d6", "0:75ff4448-509a-4d61-a1ed-887556c8ff74"


class Speaker:
    """A rank with its event log and narrator."""

    def __init__(self, replica_id: str, rank: int = 0) -> None:
        self.lines: list[str] = []
        self.events = EventLog(None, "trainer", replica_id=replica_id, rank=rank)
        self.narrator = Narrator(group_of(replica_id), self.lines.append)
        self.events.listeners.append(self.narrator.receive)

    def live_through_a_death(self) -> None:
        self.events.emit("quorum", members=[OTHER, ONE], step=0)
        self.events.emit("commit", step=0, quorum=1)
        self.events.emit("member_lost", lost=ONE, reason=f"{ONE} is lost: its address http://h:1 refuses connections.")
        self.events.emit("commit", step=1, quorum=2)


@pytest.fixture
def speakers() -> Iterator[list[Speaker]]:
    made = [Speaker(OTHER), Speaker(ONE)]
    yield made
    for speaker in made:
        speaker.events.close()


def test_the_lowest_group_tells_it_in_group_numbers(speakers: list[Speaker]) -> None:
    for speaker in speakers:
        speaker.live_through_a_death()
    first, other = (s.lines for s in speakers)
    assert first[0] == "group 1 died (its address http://h:1 refuses connections) at step 1"
    assert first[1].startswith("training goes on at step 2 with 1 group: ")
    assert len(first) == 2
    assert other == []


def test_who_has_left_is_silent(speakers: list[Speaker]) -> None:
    speakers[0].events.close()
    speakers[0].live_through_a_death()
    assert speakers[0].lines == []


def test_commits_are_kept_until_something_happens(speakers: list[Speaker]) -> None:
    events, narrator = speakers[0].events, speakers[0].narrator
    events.emit("quorum", members=[OTHER, ONE], step=0)
    steps = 3 * TYPICAL
    for step in range(steps):
        events.emit("commit", step=step, quorum=1, participants=2)
    assert narrator.story.step == 0
    assert len(narrator.commits) == TYPICAL + 1  # a step costs no more than this
    usual = [later["mono"] - earlier["mono"] for earlier, later in pairwise(narrator.commits)]
    events.emit("member_lost", lost=ONE, reason="gone")
    assert speakers[0].lines == [f"group 1 died (gone) at step {steps}"]
    assert not narrator.commits
    assert narrator.story.usual_step == sorted(usual)[TYPICAL // 2]
    events.emit("commit", step=steps, quorum=2)  # heard at once: it has something to say
    assert speakers[0].lines[1].startswith(f"training goes on at step {steps + 1} with 1 group: ")


def test_replica_ids_become_groups() -> None:
    assert readable(f"{ONE} is lost: lost {OTHER}, {ONE}.") == "group 1 is lost: lost group 0, group 1."
    assert readable("http://127.0.0.1:29510 and a:1 stay") == "http://127.0.0.1:29510 and a:1 stay"


@pytest.mark.parametrize(("level", "wanted"), [("", True), ("debug", True), ("warning", False), ("ERROR", False)])
def test_the_log_level_silences_it(level: str, wanted: bool) -> None:
    assert env.wants_news({"TORCHFT_X_LOG_LEVEL": level}) is wanted
