"""A new lineage (R9b): when it begins, with whom, and what is said of what is lost with it."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import Scene, issued, member, of, quorum
from torchft_x.core.lighthouse.next_quorum import loss, steps_lost
from torchft_x.core.messages import Note
from torchft_x.core.messages.lighthouse import AttemptHalted, Issue, SendWaits
from torchft_x.core.types import AttemptId, JoinReason, State
from torchft_x.timing import TIMING

OLD = quorum(member("a:1", State(5, 3)), member("b:1", State(5, 3)), member("c:1"), id=7, number=4)


def test_what_was_lost_is_the_newest_step_that_anybody_told() -> None:
    new = quorum(member("x:1", State(2, 3)), id=8)
    assert steps_lost(OLD, 0, new) == 3
    assert steps_lost(OLD, 12, new) == 10
    assert steps_lost(OLD, 12, quorum(member("x:1", State(13, 3)), id=8)) == -1


def test_it_says_what_was_lost_with_whom_and_what_would_have_kept_it() -> None:
    new = quorum(member("x:1"), id=8)
    assert loss(OLD, 12, new, {"a:1": "its process ended with exit code -9"}) == (
        "A new lineage begins at step 0: at least 12 committed steps are lost, up to step 12 of q4, because all groups that "
        "held them are gone: a:1 (its process ended with exit code -9), b:1 (it is away). What outlives all groups is a "
        "checkpoint (train_ddp.py: --checkpoint PATH; in your own script: save one and load it at the start); more groups, on "
        "more hosts, make it rarer that all are gone at once."
    )
    assert "at least 1 committed step is lost, up to step 5" in loss(OLD, 0, quorum(member("x:1", State(4, 3))), {})
    nothing = loss(OLD, 0, quorum(member("x:1", State(5, 3)), id=8), {"b:1": "it has left"})
    known = "A new lineage begins at step 5: no member carries on q4, which stood at step 5 (quorum 3). No "
    assert nothing.startswith(known)
    torn = quorum(member("a:1", torn=True), member("b:1", torn=True), id=7, number=4)
    assert torn.carriers == ()
    assert "a:1 (it is away), b:1 (it has left)" in loss(torn, 0, new, {"b:1": "it has left"})


def all_dead(*, reached: int = 40, **config: object) -> Scene:
    """Two groups that were granted many steps are killed in one moment."""
    s = Scene(join_timeout=60.0, **config)
    s.announce("a", "b")
    s.start("a:1", "b:1")
    s.lighthouse._quorum_state.reached = reached
    s.exited("a:1")
    s.exited("b:1")
    return s


def back(s: Scene, name: str) -> list[list[str]]:
    s.hello(f"{name}:2", attempt_id=AttemptId(1, 0.0, f"token-{name}:2"))
    return issued(s.join(f"{name}:2", reason=JoinReason.NEW))


def test_the_event_counts_the_steps() -> None:
    s = all_dead()
    back(s, "a")
    s.hello("b:2", attempt_id=AttemptId(1))
    effects = s.join("b:2", reason=JoinReason.NEW)
    (note,) = [n for n in of(Note, effects) if n.event == "new_lineage"]
    assert note.steps == 40
    assert "a:1 (its process ended with exit code -9), b:1 (its process ended with exit code -9)" in note.text
    assert note.quorum_id == of(Issue, effects)[0].quorum.id


def test_all_that_are_starting_begin_it_together() -> None:
    """F7: the first was alone for 10 ms, and what it did then was of no use to anybody."""
    s = all_dead()
    assert back(s, "a") == []
    assert issued(s.wait(0.7, alive=("a:2",))) == []
    assert "A new lineage can begin with 1 participants, waiting until the join timeout" in s.lighthouse.undecided
    assert "group b" in s.lighthouse.undecided
    assert back(s, "b") == [["a:2", "b:2"]]


def test_who_has_said_hello_and_has_not_asked_is_waited_for_too() -> None:
    s = all_dead()
    s.hello("b:2", attempt_id=AttemptId(1))
    assert back(s, "a") == []
    assert issued(s.join("b:2", reason=JoinReason.NEW)) == [["a:2", "b:2"]]


@pytest.mark.parametrize(("join_timeout", "waits"), [(60.0, TIMING.new_lineage), (2.0, 2.0)])
def test_a_group_that_does_not_come_is_waited_for_no_longer_than_that(join_timeout: float, waits: float) -> None:
    s = Scene(join_timeout=join_timeout)
    s.announce("a", "b")
    s.hello("a:1")
    s.hello("b:1")
    s.join("a:1")
    assert issued(s.join("b:1")) == [["a:1", "b:1"]]
    s.exited("a:1")
    s.exited("b:1")
    assert back(s, "a") == []
    assert issued(s.wait(waits - 0.2, alive=("a:2",))) == []
    assert issued(s.wait(0.4, alive=("a:2",))) == [["a:2"]]


@pytest.mark.parametrize("pause", [1.0, 2 * TIMING.one_wait])
def test_who_gives_up_and_comes_again_goes_on_with_the_same_wait(pause: float) -> None:
    """Each ask began the wait anew, which is longer here than the groups ask for: b's supervisor was there, and no
    attempt of b ever asked, so no lineage began. After a long pause it is another wait."""
    s = all_dead()
    assert back(s, "a") == []
    assert issued(s.wait(TIMING.new_lineage - 10.0, alive=("a:2",))) == []
    s.exited("a:2", 1)
    s.wait(pause)
    s.hello("a:3", attempt_id=AttemptId(2, 0.0, "token-a:3"))
    assert issued(s.join("a:3", reason=JoinReason.NEW)) == []
    begun = [["a:3"]] if pause < TIMING.one_wait else []
    assert issued(s.wait(10.0, alive=("a:3",))) == begun


def test_nobody_is_waited_for_where_a_member_carries_on() -> None:
    s = Scene(join_timeout=60.0)
    s.announce("a", "b")
    s.start("a:1", "b:1")
    s.exited("b:1")
    assert issued(s.join("a:1", s.lighthouse.current.top, JoinReason.FAILED)) == [["a:1"]]


def alone_with_the_state(**config: object) -> Scene:
    """a holds the newest state alone and is stopped; b has come new."""
    s = Scene.started("a:1", **{"give_up_after": 300.0, **config})
    s.announce("a", "b")
    s.feed(AttemptHalted(0, "token-a:1", "worker 0", 1.0))
    s.arrive("b:1", reason=JoinReason.NEW)
    return s


def test_a_member_that_is_stopped_is_given_up_after_a_time_and_not_with_its_lease() -> None:
    s = alone_with_the_state()
    effects = s.wait(150.0, alive=("b:1",))
    assert issued(effects) == []
    assert len(of(SendWaits, effects)) >= 149  # so that b's trainer does not give up meanwhile
    assert "or until 300 s have passed since they were heard of" in s.lighthouse.undecided
    assert issued(s.wait(149.0, alive=("b:1",))) == []
    assert issued(s.wait(2.0, alive=("b:1",))) == [["b:1"]]


def test_a_member_that_is_back_in_time_has_lost_nothing() -> None:
    s = alone_with_the_state()
    assert issued(s.wait(200.0, alive=("b:1",))) == []
    s.hello("a:1", lease_left=0.0)
    effects = s.join("a:1", s.committed(), JoinReason.REJOINED)
    assert issued(effects) == [["a:1", "b:1"]]
    assert not [n for n in of(Note, effects) if n.event == "new_lineage"]
    s = alone_with_the_state()
    s.wait(150.0, alive=("b:1",))
    assert issued(s.exited("a:1")) == [["b:1"]]  # a proof ends the wait at once
