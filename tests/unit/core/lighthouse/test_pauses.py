"""Announced pauses: who is told, and what ends them."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import Scene, of
from torchft_x.core.messages import Note
from torchft_x.core.messages.lighthouse import LighthouseEffect, Paused, SendWaits

ALL = ("a:1", "b:1", "c:1")


class Stage(Scene):
    """a, b and c train together."""

    def __init__(self) -> None:
        super().__init__()
        self.start(*ALL)

    def pause(self, replica_id: str, seconds: float) -> list[LighthouseEffect]:
        return self.feed(Paused(self.sessions[replica_id], seconds, f"{replica_id[0]} evaluates"))

    def told(self, seconds: float) -> list[tuple[list[str], str, bool]]:
        """Return who is told what meanwhile."""
        names = {session: replica_id for replica_id, session in self.sessions.items()}
        said = of(SendWaits, self.wait(seconds, alive=self.sessions))
        return [([names[s] for s in e.sessions], e.reason, e.pauses) for e in said]


def test_who_has_asked_is_told_in_each_second_that_a_member_pauses() -> None:
    s = Stage()
    s.pause("a:1", 2.5)
    assert s.told(2.0) == []  # nobody has asked
    s.pause("a:1", 2.5)
    s.join("c:1", s.committed())
    text = "Waiting for members of q1 to ask: a:1, b:1."
    pauses = (["c:1"], f"{text} a:1 pauses: a evaluates.", True)
    assert s.told(4.1) == [pauses, pauses, (["c:1"], text, False), (["c:1"], text, False)]


def test_only_pauses_of_those_that_are_waited_for_count() -> None:
    s = Stage()
    s.hello("d:1")  # here, but has not asked
    for name in ("d:1", "a:1", "b:1"):
        s.pause(name, 60.0)
    s.join_all("b:1", "c:1", state=s.committed())
    (told,) = s.told(1.1)
    assert told == (["b:1", "c:1"], "Waiting for members of q1 to ask: a:1. a:1 pauses: a evaluates.", True)
    assert s.feed(Paused(99, 5.0, "?")) == []  # of a session that nobody knows


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_it_is_noted_and_stands_in_the_status_and_ends_now_when_that_is_said(seconds: float) -> None:
    s = Stage()
    assert [n.event for n in of(Note, s.pause("a:1", 60.0))] == ["pause"]
    pauses = {m.replica_id: m.pause for m in s.lighthouse.view(10.0).members}
    assert pauses == {"a:1": 50.0, "b:1": 0.0, "c:1": 0.0}
    s.now = 7.0
    assert of(Note, s.pause("a:1", seconds)) == []
    assert s.record("a:1").pause_until == 7.0
