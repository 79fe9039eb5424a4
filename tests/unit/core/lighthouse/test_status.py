"""The lighthouse's state for the status page."""

from __future__ import annotations

from typing import Any

from tests.unit.core.scene import UNIX, Scene
from torchft_x.core.types import State


def members(s: Scene) -> dict[str, dict[str, Any]]:
    return {m["replica_id"]: m for m in s.lighthouse.status(s.now)["members"]}


def test_a_quorum_and_who_heals_in_it() -> None:
    s = Scene.started("a:1", now=50.0, lease=30.0)
    state = s.committed()
    s.arrive("b:1")
    s.now = 60.0
    s.join("a:1", state)
    cur = s.lighthouse.current
    assert s.lighthouse.status(62.5)["quorum"] == {
        "id": cur.id,
        "config_id": cur.id,
        "number": 2,
        "age": 2.5,
        "step": 1,
        "committed_in": state.committed_in,
        "granted_through": 2,
        "lease": 30.0,
        "broken": "",
        "members": [{"replica_id": "a:1", "step": 1, "heals": False}, {"replica_id": "b:1", "step": 0, "heals": True}],
    }
    assert cur.created == UNIX + 10.0
    status = s.lighthouse.status(62.5)
    assert (status["uptime"], status["fresh"], status["min_replicas"]) == (12.5, False, 1)


def test_a_member_that_waits_and_one_that_does_not() -> None:
    s = Scene(min_replicas=2)
    s.hello("a:1")
    s.now = 2.0
    s.arrive("b:1", State(3, 9))
    s.now = 3.0
    assert members(s)["a:1"] == {
        "replica_id": "a:1", "address": "http://a-1", "library": "torchft_x/0.1", "kind": "session", "heard": 3.0,
        "in_quorum": False, "waits": False, "waited": None, "reason": None, "step": None, "lost": "", "over": False,
        "suspected": False, "pause": 0.0,
    }  # fmt: skip
    b = members(s)["b:1"]
    assert (b["waits"], b["waited"], b["reason"], b["step"], b["heard"]) == (True, 1.0, "boundary", 3, 1.0)


def test_on_what_a_member_speaks() -> None:
    s = Scene.started("a:1", "b:1")
    s.close("b:1")
    s.beat("peer")
    assert {name: (m["kind"], m["in_quorum"]) for name, m in members(s).items()} == {
        "a:1": ("session", True), "b:1": ("away", True), "peer": ("unary", False),
    }  # fmt: skip
    s.exited("b:1")
    gone = members(s)["b:1"]
    assert (gone["lost"], gone["over"]) == ("its process ended with exit code -9", True)
    assert s.lighthouse.status(s.now)["quorum"]["broken"] != ""


def test_the_newest_decisions_with_what_caused_them() -> None:
    s = Scene(now=50.0, min_replicas=1)
    s.hello("a:1")
    s.hello("b:1")
    s.join("a:1")
    s.join("b:1")
    s.now = 52.0
    s.leave("b:1", State())
    lines = s.lighthouse.status(55.0)["story"]
    assert lines == s.lighthouse.story(55.0)
    assert lines[0] == "5.0 s ago, Hello of a:1: a:1 is here, at step 0 (quorum 0)."
    assert "5.0 s ago, Join of b:1: Quorum q1 is formed at step 0 (quorum 0): 2 members, 2 of them up to date." in lines
    assert next(line for line in lines if line.startswith("3.0 s ago")) == (
        "3.0 s ago, Leave: b:1 leaves at step 0 (quorum 0)."
    )
