"""What a rank says about itself, from what it hears."""

from __future__ import annotations

import pytest

from tests.unit.train.introspection.test_shared_status import (
    event,
    make,
)
from torchft_x.train.introspection import shared_status as module


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock."""
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    return clock


def test_steps_and_what_is_done_between_them_are_its_measure(now: list[float]) -> None:
    status = make()
    now[0] = 130.0
    status.asked()  # the first step may take long to come
    status.hear(event("commit", duration=2.0))
    now[0] = 131.5
    assert (status.read()["longest_step"], status.read()["step_seconds"], status.read()["commits"]) == (2.0, 1.5, 1)
    now[0] = 155.0
    status.asked()  # after an evaluation
    assert status.read()["longest_step"] == 25.0
    status.hear(event("drop", reason="why"))
    now[0] = 156.0
    assert (status.read()["step_seconds"], status.read()["error"]) == (1.0, "why")


def test_a_pause_is_no_measure(now: list[float]) -> None:
    status = make()
    status.hear(event("commit", duration=2.0))
    status.pause(600.0)
    now[0] = 400.0
    assert status.read()["paused"]
    status.pause(0.0)
    status.asked()
    assert not status.read()["paused"]
    assert status.read()["longest_step"] == 2.0


def test_inner_steps_are_the_progress_of_a_group_that_trains_apart(now: list[float]) -> None:
    status = make()
    status.trained()  # it is about to begin
    now[0] = 160.0
    status.hear(event("commit", duration=2.0))
    for now[0] in (168.0, 176.0, 184.0):
        status.trained()
    now[0] = 185.0
    said = status.read()
    assert (said["apart"], said["step_seconds"], said["longest_step"]) == (True, 1.0, 8.0)
    assert not make().read()["apart"]
