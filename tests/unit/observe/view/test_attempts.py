"""What supervisors have said of their groups."""

from __future__ import annotations

from torchft_x.core.messages.job import (
    AttemptExited,
    AttemptStarted,
    GroupRests,
    SupervisorFinished,
    SupervisorGone,
    SupervisorHere,
)
from torchft_x.observe.view.attempts import MOST, AttemptTable


def test_an_attempt_and_the_next_one() -> None:
    attempts = AttemptTable()
    attempts.receive(SupervisorHere("1", "node-a", stream=7))
    attempts.receive(AttemptStarted("1", 0, "x"))
    group = attempts.get("1")
    assert (group.here, group.host, group.alive, group.restarts) == (True, "node-a", True, 0)
    attempts.receive(AttemptExited("1", 0, "x", -9, "worker 0 killed by SIGKILL"))
    assert (group.alive, group.reason) == (False, "worker 0 killed by SIGKILL")
    attempts.receive(AttemptStarted("1", 1, "y"))
    assert (group.alive, group.attempt, group.restarts, attempts.restarts) == (True, 1, 1, 1)


def test_what_is_said_again_after_a_reconnect_counts_once() -> None:
    attempts = AttemptTable()
    for _ in range(2):
        attempts.receive(SupervisorHere("1", "a", stream=7))
        attempts.receive(AttemptStarted("1", 1, "y"))
        attempts.receive(AttemptExited("1", 0, "x", -9, "of the attempt before"))
    group = attempts.get("1")
    assert (group.alive, group.starts, group.reason) == (True, 1, "")


def test_a_group_over_two_nodes_is_here_as_long_as_one_is() -> None:
    attempts = AttemptTable()
    attempts.receive(SupervisorHere("1", "a", 0, 2, stream=1))
    attempts.receive(SupervisorHere("1", "b", 1, 2, stream=2))
    attempts.receive(SupervisorGone("1", 0, 1))
    group = attempts.get("1")
    assert (group.here, group.host) == (True, "a, b")
    attempts.receive(SupervisorGone("1", 1, 2))
    assert not group.here


def test_its_end_and_its_rest() -> None:
    attempts = AttemptTable()
    attempts.receive(AttemptStarted("1", 0, "x"))
    attempts.receive(GroupRests("1", True))
    group = attempts.get("1")
    assert group.rests
    attempts.receive(SupervisorFinished("1", 1, "gave up", 0))
    assert (group.finished, group.alive) == ((1, "gave up"), False)
    attempts.receive(SupervisorHere("1", "a", stream=9))  # started again by its scheduler
    assert group.finished is None


def test_those_that_are_gone_are_forgotten_first() -> None:
    attempts = AttemptTable()
    attempts.receive(SupervisorHere("0", "a", stream=1))
    for n in range(1, MOST + 1):
        attempts.receive(AttemptStarted(str(n), 0, "x"))
    assert len(list(attempts)) == MOST
    assert "0" in attempts
    assert "1" not in attempts
