"""Announced silences: who is told, for how long, and what ends them."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import Scene, of
from torchft_x.core.messages.common import Note
from torchft_x.core.messages.lighthouse import LighthouseEffect, Paused, SendPatience

ALL = ("a:1", "b:1", "c:1")


class Stage(Scene):
    """a, b and c train together."""

    def __init__(self) -> None:
        super().__init__()
        self.start(*ALL)

    def pause(self, replica_id: str, seconds: float) -> list[LighthouseEffect]:
        return self.feed(Paused(self.sessions[replica_id], seconds, f"{replica_id[0]} evaluates"))

    def told(self, effects: list[LighthouseEffect]) -> list[tuple[list[str], float, str]]:
        names = {session: replica_id for replica_id, session in self.sessions.items()}
        return [([names[s] for s in e.sessions], e.seconds, e.reason) for e in of(SendPatience, effects)]


def test_told_are_those_that_wait_and_can_be_told() -> None:
    s = Stage()
    s.close("c:1")
    s.hello("d:1")  # here, but has not asked
    s.arrive("e:1")
    assert s.told(s.pause("a:1", 60.0)) == [(["b:1", "e:1"], 60.0, "a:1 pauses: a evaluates")]
    assert s.feed(Paused(99, 5.0, "?")) == []  # of a session that nobody knows
    alone = Scene.started("a:1")
    assert of(SendPatience, alone.feed(Paused(alone.sessions["a:1"], 5.0, "evaluation"))) == []


def test_the_longest_pause_counts_of_those_that_are_waited_for() -> None:
    s = Stage()
    s.hello("d:1")
    s.pause("d:1", 90.0)
    s.pause("a:1", 60.0)
    assert s.told(s.pause("b:1", 30.0)) == [(["a:1", "c:1"], 60.0, "a:1 pauses: a evaluates")]
    s.record("a:1").lost = "silent"
    assert s.told(s.pause("b:1", 20.0)) == [(["a:1", "c:1"], 20.0, "b:1 pauses: b evaluates")]


def test_whoever_begins_to_wait_when_it_has_ended_is_told_nothing() -> None:
    s = Stage()
    s.pause("a:1", 60.0)
    s.now = 59.0
    state = s.committed()
    assert s.told(s.join("b:1", state)) == [(["b:1"], 1.0, "a:1 pauses: a evaluates")]
    s.now = 60.0
    assert s.told(s.join("c:1", state)) == []


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_it_is_noted_and_stands_in_the_status_and_ends_now_when_that_is_said(seconds: float) -> None:
    s = Stage()
    assert [n.event for n in of(Note, s.pause("a:1", 60.0))] == ["pause"]
    pauses = {m["replica_id"]: m["pause"] for m in s.lighthouse.status(10.0)["members"]}
    assert pauses == {"a:1": 50.0, "b:1": 0.0, "c:1": 0.0}
    s.now = 7.0
    assert of(Note, s.pause("a:1", seconds)) == []
    assert s.record("a:1").pause_until == 7.0
