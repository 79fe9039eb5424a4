"""What a rank says about itself, from what it hears."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.process.train.watched_worker import options
from torchft_x import env
from torchft_x.core.commit.step import Step
from torchft_x.core.types import State
from torchft_x.train.introspection import setup
from torchft_x.train.introspection import shared_status as module
from torchft_x.train.introspection.shared_status import SharedStatus


def make(story: Callable[[], list[str]] = list) -> SharedStatus:
    step = Step(min_replica_size=1)
    step.state = State(4, 7)
    return SharedStatus(options(0), step, "1:a", story)


def event(name: str, **fields: Any) -> dict[str, Any]:
    return {"replica_id": "1:a", "rank": 0, "event": name, "t": 50.0, **fields}


def test_it_says_with_whom_it_is() -> None:
    status = make()
    status.receive(event("quorum", number=3, members=["1:a", "2:b"]))
    status.receive(event("configure", config=9, duration=0.5))
    said = status.read()
    assert (said["number"], said["members"], said["config"], said["configured"]) == (3, ["1:a", "2:b"], 9, 49.5)
    assert (said["step"], said["phase"], said["leaving"]) == (4, "idle", False)


def test_it_says_what_its_group_has_decided_lately() -> None:
    decided = [f"decision {n}" for n in range(20)]
    said = make(lambda: decided).read()
    assert said["story"] == decided[-8:]
    assert said["story_t"] == pytest.approx(said["t"], abs=60)


def test_others_events_are_not_its_own() -> None:
    status = make()
    status.receive(event("commit", duration=2.0) | {"rank": 1})
    status.receive(event("leave") | {"replica_id": "1:before"})
    assert (status.read()["commits"], status.read()["leaving"]) == (0, False)
    status.receive(event("leave"))
    assert status.read()["leaving"]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock."""
    clock = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    return clock


def test_steps_and_what_is_done_between_them_are_its_measure(now: list[float]) -> None:
    status = make()
    now[0] = 130.0
    status.begin_step(story=False)  # the first step may take long to come
    status.receive(event("commit", duration=2.0))
    now[0] = 131.5
    assert (status.read()["longest_step"], status.read()["step_seconds"], status.read()["commits"]) == (2.0, 1.5, 1)
    now[0] = 155.0
    status.begin_step(story=False)  # after an evaluation
    assert status.read()["longest_step"] == 25.0
    status.receive(event("drop", reason="why"))
    now[0] = 156.0
    assert (status.read()["step_seconds"], status.read()["error"]) == (1.0, "why")


def test_a_pause_is_no_measure(now: list[float]) -> None:
    status = make()
    status.receive(event("commit", duration=2.0))
    status.pause(600.0)
    now[0] = 400.0
    assert status.read()["paused"]
    status.pause(0.0)
    status.begin_step(story=False)
    assert not status.read()["paused"]
    assert status.read()["longest_step"] == 2.0


def test_inner_steps_are_the_progress_of_a_group_that_trains_apart(now: list[float]) -> None:
    status = make()
    status.trained()  # it is about to begin
    now[0] = 160.0
    status.receive(event("commit", duration=2.0))
    for now[0] in (168.0, 176.0, 184.0):
        status.trained()
    now[0] = 185.0
    said = status.read()
    assert (said["apart"], said["step_seconds"], said["longest_step"]) == (True, 1.0, 8.0)
    assert not make().read()["apart"]


def test_without_a_supervisor_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.ATTEMPT, raising=False)
    monkeypatch.setattr(setup, "subscribe", None)
    status = setup.status_of(options(0), Step(min_replica_size=1), "1:a", lambda: pytest.fail("nobody reads it"))
    status.publish(story=True)
    status.trained()
    status.pause(1.0)
