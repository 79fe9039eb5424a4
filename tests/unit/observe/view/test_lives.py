"""What supervisors have said of their groups."""

from __future__ import annotations

from torchft_x.core.messages.job import (
    GroupRests,
    LifeExited,
    LifeStarted,
    SupervisorFinished,
    SupervisorGone,
    SupervisorHere,
)
from torchft_x.observe.view.lives import MOST, AttemptTable


def test_a_life_and_the_next_one() -> None:
    lives = AttemptTable()
    lives.receive(SupervisorHere("1", "node-a", stream=7), 1.0)
    lives.receive(LifeStarted("1", 0, "x"), 2.0)
    group = lives.get("1")
    assert (group.here, group.host, group.alive, group.restarts) == (True, "node-a", True, 0)
    lives.receive(LifeExited("1", 0, "x", -9, "worker 0 killed by SIGKILL"), 3.0)
    assert (group.alive, group.code, group.reason, group.since) == (False, -9, "worker 0 killed by SIGKILL", 3.0)
    lives.receive(LifeStarted("1", 1, "y"), 4.0)
    assert (group.alive, group.attempt, group.restarts, lives.restarts) == (True, 1, 1, 1)


def test_what_is_said_again_after_a_reconnect_counts_once() -> None:
    lives = AttemptTable()
    for _ in range(2):
        lives.receive(SupervisorHere("1", "a", stream=7), 1.0)
        lives.receive(LifeStarted("1", 1, "y"), 1.0)
        lives.receive(LifeExited("1", 0, "x", -9, "of the life before"), 1.0)
    group = lives.get("1")
    assert (group.alive, group.starts, group.reason) == (True, 1, "")


def test_a_group_over_two_nodes_is_here_as_long_as_one_is() -> None:
    lives = AttemptTable()
    lives.receive(SupervisorHere("1", "a", 0, 2, stream=1), 1.0)
    lives.receive(SupervisorHere("1", "b", 1, 2, stream=2), 1.0)
    lives.receive(SupervisorGone("1", 0, 1), 2.0)
    group = lives.get("1")
    assert (group.here, group.host) == (True, "a, b")
    lives.receive(SupervisorGone("1", 1, 2), 2.0)
    assert not group.here


def test_its_end_and_its_rest() -> None:
    lives = AttemptTable()
    lives.receive(LifeStarted("1", 0, "x"), 1.0)
    lives.receive(GroupRests("1", True), 2.0)
    group = lives.get("1")
    assert group.rests
    lives.receive(SupervisorFinished("1", 1, "gave up", 0), 3.0)
    assert (group.finished, group.alive) == ((1, "gave up"), False)
    lives.receive(SupervisorHere("1", "a", stream=9), 4.0)  # started again by its scheduler
    assert group.finished is None


def test_those_that_are_gone_are_forgotten_first() -> None:
    lives = AttemptTable()
    lives.receive(SupervisorHere("0", "a", stream=1), 1.0)
    for n in range(1, MOST + 1):
        lives.receive(LifeStarted(str(n), 0, "x"), 1.0)
    assert len(list(lives)) == MOST
    assert "0" in lives
    assert "1" not in lives
