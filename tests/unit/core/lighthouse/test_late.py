"""Members that live and do not come (R20): left out by what the others waited, back when they ask, kept out when they
are late again and again."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import Scene, issued, member, notes, of, overs
from torchft_x.core.messages import Note
from torchft_x.core.messages.job import AttemptStarted, SupervisorHere
from torchft_x.core.messages.lighthouse import Join, LighthouseEffect, Paused, SendWaits, SupervisorHeard, Tick
from torchft_x.core.types import JoinReason, State
from torchft_x.timing import TIMING

ALL = ("a:1", "b:1", "c:1")


class Stage(Scene):
    """a, b and c train together; all ping all the time."""

    def __init__(self, *members: str, **config: object) -> None:
        super().__init__(**config)
        self.members = members or ALL
        self.start(*self.members)

    def asks(self, replica_id: str, patience: float = 2.0, state: State | None = None) -> list[LighthouseEffect]:
        """At a boundary, or because a reduction failed."""
        reason = JoinReason.FAILED if state is None else JoinReason.BOUNDARY
        return self.feed(Join(self.sessions[replica_id], member(replica_id, state), reason, patience=patience))

    def go_on(self) -> list[LighthouseEffect]:
        """a and b ask at their next boundary."""
        state = self.committed()
        return self.asks("a:1", state=state) + self.asks("b:1", state=state)

    def late(self) -> list[LighthouseEffect]:
        """c does not come to the boundary of a and b."""
        self.go_on()
        return self.passes(2.2)

    def back(self) -> list[LighthouseEffect]:
        """c asks, then a and b do."""
        return self.asks("c:1") + self.go_on()

    def passes(self, seconds: float) -> list[LighthouseEffect]:
        return self.wait(seconds, alive=self.members)


def test_who_does_not_ask_is_left_out_when_the_first_that_has_waited_for_as_long_as_it_said() -> None:
    for first, least in ((5.0, 2.0), (1e-6, 1e-6)):
        s = Stage()
        s.asks("a:1", patience=first)
        s.asks("b:1", patience=least)
        waits = max(least, TIMING.ask_moment)  # a moment is waited even for who says none
        assert issued(s.passes(waits - 0.1)) == []
        effects = s.passes(0.3)
        assert notes(effects).count("member_lost") == 1
        assert issued(effects) == [["a:1", "b:1"]]


def test_one_has_waited_and_several_have() -> None:
    for members, words in ((ALL, "a:1, b:1 have waited for it, at last 2"), (("a:1", "c:1"), "a:1 has waited for it")):
        s = Stage(*members)
        for name in members[:-1]:
            s.asks(name)
        (reason,) = [e.text for e in s.passes(2.3) if isinstance(e, Note) and e.event == "member_lost"]
        assert words in reason


def test_pings_do_not_bring_it_back_and_it_is_told_once() -> None:
    s = Stage()
    s.asks("a:1")
    s.asks("b:1")
    told = [o for o in overs(s.passes(10.0)) if o[1] == ("c:1",)]
    assert told == [((s.sessions["c:1"],), ("c:1",))]
    assert s.state.missing != {"c:1"}


def test_nobody_is_left_out_where_the_others_could_not_go_on_without_it() -> None:
    s = Stage(min_replicas=3)
    s.asks("a:1")
    s.asks("b:1")
    assert issued(s.passes(60.0)) == []
    outcome = s.lighthouse._next_quorum.outcome(s.now)
    assert "c:1" in outcome.reason


def test_who_may_hold_the_newest_state_is_never_too_late() -> None:
    s = Stage("a:1", "b:1")
    s.asks("a:1", state=State())
    s.asks("b:1", state=s.committed())  # a new quorum in which a copies b's state
    assert [m.replica_id for m in s.lighthouse.current.carriers] == ["b:1"]
    s.asks("a:1", state=State())
    effects = s.wait(300.0, alive=("a:1", "b:1"))
    assert issued(effects) == []
    assert "new_lineage" not in notes(effects)


def test_an_announced_pause_counts_from_its_end() -> None:
    s = Stage()
    s.feed(Paused(s.sessions["c:1"], 30.0, "evaluation"))
    s.asks("a:1")
    s.asks("b:1")
    assert issued(s.passes(31.0)) == []
    assert issued(s.passes(1.5)) == [["a:1", "b:1"]]


def test_who_was_late_twice_within_a_minute_is_kept_out_for_a_while_and_told_why() -> None:
    s = Stage()

    s.late()
    assert issued(s.back()) == [list(ALL)]
    assert "kept_out" in notes(s.late())
    effects = s.back()
    assert issued(effects) == [["a:1", "b:1"]]
    told = [e.reason for e in of(SendWaits, s.passes(2.1)) if s.sessions["c:1"] in e.sessions]
    assert ["late again and again; it is let in again in" in reason for reason in told] == [True, True]
    s.passes(8.5)
    assert issued(s.go_on()) == [list(ALL)]


def test_who_is_kept_out_is_let_in_when_nobody_else_is_left() -> None:
    s = Stage("a:1", "b:1")
    for _ in range(2):
        s.asks("a:1", state=s.committed())
        s.passes(2.2)
        s.asks("b:1")
        s.asks("a:1", state=s.committed())
    s.asks("a:1", state=s.committed())
    s.passes(2.2)  # b is late a third time
    s.asks("b:1")
    assert s.state.asking == set()
    s.exited("a:1")
    assert issued(s.wait(1.0, alive=("b:1",))) == [["b:1"]]


def test_of_a_new_job_who_is_here_and_never_asks_is_waited_for_a_minute() -> None:
    s = Scene()
    for name in ("a:1", "b:1"):
        s.hello(name)
    s.join("a:1")
    assert issued(s.wait(TIMING.first_ask - 1.0, alive=("a:1", "b:1"))) == []
    assert issued(s.wait(1.5, alive=("a:1", "b:1"))) == [["a:1"]]


def test_a_client_of_the_peer_that_beats_and_does_not_ask() -> None:
    s = Scene(join_timeout=60.0)
    s.beat("p:1", "q:1")
    s.unary("p:1", 1)
    assert issued(s.unary("q:1", 2)) == [["p:1", "q:1"]]
    s.unary("p:1", 3, step=1)
    effects = s.wait(TIMING.peer_patience + 0.5, alive=("p:1", "q:1"))
    assert issued(effects) == [["p:1"]]
    effects = s.wait(5.0, alive=("p:1", "q:1"))
    assert not any(isinstance(e, Note) and e.event == "member_lost" for e in effects)


@pytest.mark.parametrize("patience", [2.0, 10.0])
def test_a_member_that_has_asked_is_never_late(patience: float) -> None:
    s = Stage()
    for name in ("a:1", "b:1"):
        s.asks(name, patience=patience)
    s.passes(patience - 0.5)
    effects = s.asks("c:1", patience=patience)
    assert issued(effects) == [list(ALL)]


def test_a_newcomers_patience_is_not_that_of_members() -> None:
    s = Stage()
    s.hello("d:1")
    s.asks("d:1", patience=2.0, state=State())
    s.asks("a:1", patience=10.0, state=s.committed())
    effects = s.wait(5.0, alive=(*ALL, "d:1"))
    assert "member_lost" not in notes(effects)


class TwoNodes(Stage):
    """c runs on two nodes; `heard` says which of their supervisors are."""

    def __init__(self) -> None:
        super().__init__()
        for node in (0, 1):
            self.feed(SupervisorHere("c", f"host{node}", node, 2, stream=10 + node))
            self.feed(AttemptStarted("c", 0, "token-c:1", 10 + node))

    def goes_on(self, seconds: float, heard: tuple[int, ...]) -> list[LighthouseEffect]:
        effects: list[LighthouseEffect] = []
        end = self.now + seconds
        while self.now < end - 1e-9:
            for node in heard:
                self.feed(SupervisorHeard(10 + node))
            effects += self.passes(self.tick)
        return effects


def test_a_member_that_lost_a_node_is_not_waited_for_once_a_reduction_with_it_has_failed() -> None:
    s = TwoNodes()
    assert notes(s.goes_on(2.0, heard=(0,))) == []  # its ranks there may run on while the supervisor is held up
    s.asks("a:1", patience=0.5)
    s.asks("b:1", patience=0.5)
    effects = s.feed(Tick())
    assert issued(effects) == [["a:1", "b:1"]]
    (note,) = (e for e in effects if isinstance(e, Note) and e.event == "member_lost")
    assert "its supervisor on host1 is silent for 1.5 s" in note.text
    assert "member_lost" not in notes(s.goes_on(5.0, heard=(0,)))  # its pings do not bring it back
    s.asks("c:1")  # nor was it late: it is let in at once
    s.asks("a:1", state=s.committed())
    assert issued(s.asks("b:1", state=s.committed())) == [list(ALL)]


@pytest.mark.parametrize(("heard", "failed"), [((0, 1), True), ((0,), False)])
def test_a_silent_node_alone_or_a_failed_reduction_alone_is_waited_for(heard: tuple[int, ...], failed: bool) -> None:
    s = TwoNodes()
    s.goes_on(2.0, heard)
    state = None if failed else s.committed()
    s.asks("a:1", patience=2.0, state=state)
    s.asks("b:1", patience=2.0, state=state)
    assert issued(s.goes_on(1.5, heard)) == []
    assert issued(s.goes_on(1.0, heard)) == [["a:1", "b:1"]]


def test_who_is_back_is_looked_after_as_everybody() -> None:
    """It falls silent while it asks: it is lost once, and is not let in again as one that was late."""
    s = Stage()
    s.asks("a:1")
    s.asks("b:1")
    s.passes(3.0)
    s.asks("c:1")
    for name in ("a:1", "b:1"):
        s.asks(name, state=s.committed())
    s.passes(0.5)
    s.asks("c:1", patience=60.0)
    assert notes(s.wait(30.0, alive=("a:1", "b:1"))).count("member_lost") == 1


def test_a_penalty_is_remembered_for_a_minute_after_its_end() -> None:
    """A group that is late again after its penalty has had no minute on time yet: it is kept out for twice as long."""
    s = Stage()

    s.late()
    for seconds, penalty in ((0.0, 10), (62.0, 20)):  # a minute after it was left out, and not after its penalty
        s.passes(seconds)
        assert issued(s.back()) == [list(ALL)]
        (note,) = [e for e in s.late() if isinstance(e, Note) and e.event == "kept_out"]
        assert f"let in again in {penalty} s" in note.text


def test_who_may_be_about_to_reconnect_is_not_left_out() -> None:
    """After a take-over a group that reconnected half a second after another one was left out."""
    s = Stage()
    s.close("c:1")
    s.asks("a:1", patience=TIMING.ask_moment)
    s.asks("b:1", patience=TIMING.ask_moment)
    assert not issued(s.wait(TIMING.reconnect_last - 0.1, alive=("a:1", "b:1")))
    assert issued(s.wait(0.3, alive=("a:1", "b:1"))) == [["a:1", "b:1"]]
