"""The lighthouse's state for the status page."""

from __future__ import annotations

from tests.unit.core.scene import Scene
from torchft_x.core.types import State


def test_what_other_programs_decide_by() -> None:
    s = Scene(now=50.0, min_replicas=2)
    s.announce("0")
    s.arrive("a:1")
    s.now = 52.5
    assert s.lighthouse.status(s.now) == {
        "undecided": s.lighthouse.undecided,
        "members": ["a:1"],
        "supervisors": [{"group": "0", "node": 0, "host": "host", "heard": 2.5}],
        "uptime": 2.5,
    }
    assert "need min_replicas 2" in s.lighthouse.undecided


def test_on_what_a_member_speaks_and_who_is_inside() -> None:
    s = Scene.started("a:1", "b:1")
    s.close("b:1")
    s.beat("peer")
    found = {m.replica_id: (m.connected, m.unary, m.inside) for m in s.lighthouse.view(s.now).members}
    assert found == {"a:1": (True, False, True), "b:1": (False, False, True), "peer": (True, True, False)}
    s.exited("b:1")
    assert s.record("b:1").lost == "its process ended with exit code -9"
    assert s.is_over("b:1")
    assert s.lighthouse.view(s.now).broken != ""


def test_the_newest_decisions_with_what_caused_them() -> None:
    s = Scene(now=50.0, min_replicas=1)
    s.hello("a:1")
    s.hello("b:1")
    s.join("a:1")
    s.join("b:1")
    s.now = 52.0
    s.leave("b:1", State())
    lines = s.lighthouse.story(55.0)
    assert lines[0] == "5.0 s ago, Hello of a:1: a:1 is here, at step 0 (quorum 0)."
    assert "5.0 s ago, Join of b:1: Quorum q1 is formed at step 0 (quorum 0): 2 members, 2 of them up to date." in lines
    assert next(line for line in lines if line.startswith("3.0 s ago")) == (
        "3.0 s ago, Leave: b:1 leaves at step 0 (quorum 0)."
    )
