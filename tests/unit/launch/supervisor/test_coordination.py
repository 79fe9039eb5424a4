"""Groups over several nodes as real processes: a lighthouse, a supervisor per node, toy scripts. All on this host."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from torchft_x.launch.process.restarts import AttemptEnd
from torchft_x.launch.supervisor.config import SupervisorConfig
from torchft_x.launch.supervisor.coordination import MultiNode, StartedAttempt
from torchft_x.net import parse_address


class Fake:
    """`Reports` and `StopRequests` of one node, without processes: what `wait` waits for is true or will never be."""

    first = None

    def __init__(self, node: int = 0, *, up: bool = True) -> None:
        self.up = up
        self.said: list[tuple] = []
        self.given_up = ""
        options = {"command": ("x.py",), "group": "0", "groups": 1, "workers": 2, "patience": 60.0}
        config = SupervisorConfig(node=node, nodes=2, **options)
        self.callbacks = SimpleNamespace()
        self.attempts = MultiNode(config, "h", self, self, lambda text: self.said.append(("say", text)))

    def wait(self, condition, seconds: float) -> bool:  # type: ignore[no-untyped-def]
        return condition()

    def wake(self) -> None:
        pass

    def request(self, code: int, sentence: str) -> None:
        self.given_up = sentence

    def is_up(self) -> bool:
        return self.up

    def ready(self, attempt: int, meeting: str) -> None:
        self.said.append(("ready", attempt, bool(meeting)))

    def exited(self, *end: object) -> None:
        self.said.append(("exited", *end))


KILLED = AttemptEnd(False, -9, "worker 0 killed by SIGKILL", False, False, 1.0)
BEGUN = StartedAttempt(0, "L", "h:1")


def test_a_node_that_finds_no_others_gives_up() -> None:
    node = Fake(1)
    assert node.attempts.begin(3) is None
    assert node.said[0] == ("ready", 3, False)
    assert "not all 2 nodes of group 0 were ready within 60 s" in node.given_up


def test_how_an_attempt_ends_is_what_the_lighthouse_says() -> None:
    node = Fake()
    node.callbacks.over("L", 7, "node 1: worker 1 exited with code 7: ValueError")
    end = node.attempts.outcome(BEGUN, KILLED)
    assert (end.ok, end.code, end.own_doing) == (False, 7, True)
    assert end.reason == "node 1: worker 1 exited with code 7: ValueError"
    node.callbacks.over("L", 0, "")
    end = node.attempts.outcome(BEGUN, KILLED)
    assert end.ok


def test_a_part_that_finished_is_reported_once_and_one_that_failed_with_the_programs_last_words() -> None:
    node = Fake(1)
    node.attempts.finished(BEGUN)
    node.attempts.finished(BEGUN)
    node.attempts.ended(BEGUN, AttemptEnd(True, 0, "finished", False, True, 1.0))
    failed = AttemptEnd(False, 1, "worker 1 exited with code 1", True, False, 1.0, ("Traceback", "ValueError: x"))
    node.attempts.ended(StartedAttempt(1, "M"), failed)
    assert node.said == [
        ("exited", 0, "L", 0, "finished"),
        ("exited", 1, "M", 1, "node 1: worker 1 exited with code 1: ValueError: x"),
    ]


def test_without_a_lighthouse_a_part_that_finished_has_and_another_gives_up() -> None:
    node = Fake(up=False)
    well = AttemptEnd(True, 0, "finished", False, True, 1.0)
    assert node.attempts.outcome(BEGUN, well) == well
    assert node.attempts.outcome(BEGUN, KILLED) is None
    assert node.given_up.startswith("worker 0 killed by SIGKILL; the lighthouse has been away for 60 s")


def test_node_0_listens_for_the_workers_from_the_moment_it_names_the_port() -> None:
    node = Fake()
    meetings: list[str] = []
    node.ready = lambda attempt, meeting: meetings.append(meeting)  # type: ignore[method-assign]
    for _ in range(2):
        node.attempts.begin(0)
        socket.create_connection(("127.0.0.1", parse_address(meetings[-1]).port)).close()
    with pytest.raises(ConnectionRefusedError):  # of the attempt before
        socket.create_connection(("127.0.0.1", parse_address(meetings[0]).port))
