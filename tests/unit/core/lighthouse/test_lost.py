"""What is said when a member is gone, to whom, and how often."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import Scene, member, of, overs, quorum
from torchft_x.core.lighthouse.waiting import CAUSES
from torchft_x.core.messages import Note
from torchft_x.core.messages.lighthouse import (
    Closed,
    Hello,
    Join,
    Leave,
    LighthouseEffect,
    Probe,
    Probed,
    Refuse,
)
from torchft_x.core.types import AttemptId, State


def test_the_first_reason_is_kept_and_a_later_proof_counts() -> None:
    s = Scene.started("a:1", "b:1", boot_id="another host")
    s.wait(6.0, alive=("a:1",))
    s.exited("b:1")
    assert (s.record("b:1").lost, s.is_over("b:1")) == ("silent for 5 s", True)


def test_who_was_told_and_is_lost_afterwards_is_told_again() -> None:
    """The first word may have been lost with whatever kept it silent."""
    s = Scene()
    first = s.start("a:1", "b:1")
    state = s.committed()
    s.join_all("a:1", "b:1", state=state)
    assert s.lighthouse.current.id > first.id
    effects = s.hello("b:1", quorum=first)  # the second never arrived
    session = s.sessions["b:1"]
    assert ((session,), ()) in overs(effects)
    assert overs(s.heard("b:1")) == []
    assert s.heard("b:1") == []
    s.wait(6.0, alive=("a:1",))
    assert overs(s.heard("b:1")) == [((session,), ("b:1",))]
    assert overs(s.heard("b:1")) == []


def test_who_is_away_is_told_when_it_is_back() -> None:
    """c reports an older quorum to a lighthouse that has just started, and its stream breaks."""
    old, new = quorum(member("c:1"), member("d:1"), id=5), quorum(member("a:1"), member("b:1"), id=6)
    s = Scene(restarted=True)
    s.hello("c:1", quorum=old, lease_left=9.0)
    s.close("c:1")
    s.hello("a:1", quorum=new, lease_left=9.0)
    effects = s.hello("b:1", quorum=new, lease_left=9.0)
    assert s.lighthouse.current == new
    assert overs(effects) == []
    assert overs(s.hello("c:1", quorum=old)) == [((s.sessions["c:1"],), ())]


def test_who_has_told_no_address_is_not_probed() -> None:
    s = Scene()
    s.feed(Hello(1, "a:1", address=""))
    assert of(Probe, s.feed(Closed(1))) == []
    s.hello("b:1")
    assert [p.address for p in of(Probe, s.close("b:1"))] == ["http://b-1"]


def test_who_is_refused_is_refused_once_on_everything_it_has_asked() -> None:
    s = Scene(min_replicas=2, join_timeout=0.0)
    s.arrive("a:1", State(3, 9))
    effects = s.unary("p:1", 7) + s.unary("p:1", 8)
    assert [r.call for r in of(Refuse, effects)] == [7, 8]
    assert s.unary_gone(7) == []
    wrong = s.feed(Join(s.sessions["a:1"], member("x:1")))
    assert [(r.session, r.call) for r in of(Refuse, wrong)] == [(s.sessions["a:1"], None)]
    assert s.feed(Join(s.sessions["a:1"], member("a:1"))) == []  # its stream counts no more


def test_a_peers_client_that_hangs_up_asks_no_more() -> None:
    s = Scene(min_replicas=2)
    s.unary("p:1", 7)
    assert s.state.asking == {"p:1"}
    s.unary("p:1", 8)
    s.unary_gone(7)
    assert s.state.asking == {"p:1"}
    s.unary_gone(8)
    assert s.state.asking == set()


@pytest.mark.parametrize("cause", ["exited", "left", "unreachable", "superseded", "silent"])
def test_a_loss_has_a_cause_in_one_word(cause: str) -> None:
    s = Scene.started("a:1", "b:1", "c:1")
    effects: list[LighthouseEffect] = []
    match cause:
        case "exited":
            effects = s.exited("b:1")
        case "left":
            effects = s.feed(Leave(s.sessions["b:1"]))
        case "unreachable":
            s.close("b:1")
            effects = s.feed(Probed("b:1", True, "http://b-1"))
        case "superseded":
            effects = s.hello("b:2", attempt_id=AttemptId(1, 1.0, "next"))
        case "silent":
            effects = s.wait(30.0, alive=("a:1", "c:1"))
    lost = [n for n in of(Note, effects) if n.event == "member_lost" and n.replica_id == "b:1"]
    assert [n.cause for n in lost] == [cause]
    assert cause in CAUSES
