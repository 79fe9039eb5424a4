"""What is kept of a lighthouse, and how often the overview is made."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.observe.view.test_overview import NO_JOB
from torchft_x.core.lighthouse.machine import Lighthouse, LighthouseConfig
from torchft_x.core.messages.job import AttemptExited, AttemptStarted, GroupRests, SupervisorHere
from torchft_x.rpc.lighthouse.page import recorder as module
from torchft_x.rpc.lighthouse.page.recorder import FRESH, Recorder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    return now


def made(clock: list[float], seconds: float = 0.0) -> tuple[Recorder, list[int]]:
    """A recorder whose overviews take so long, and how many there were."""
    count = [0]

    def job() -> Any:
        count[0] += 1
        clock[0] += seconds
        return NO_JOB

    return Recorder(Lighthouse(LighthouseConfig(), now=clock[0], unix=1e6), job), count


def test_all_readers_share_one_overview_for_a_while(clock: list[float]) -> None:
    recorder, count = made(clock)
    assert recorder.bytes() == recorder.bytes()
    recorder.value()
    assert count == [1]
    clock[0] += FRESH
    recorder.bytes()
    assert count == [2]


def test_what_supervisors_say_is_kept(clock: list[float]) -> None:
    recorder, _ = made(clock)
    recorder.receive(SupervisorHere("0", "a", stream=1))
    recorder.receive(AttemptStarted("0", 0, "x"))
    recorder.receive(AttemptExited("0", 0, "x", 1, "exited with code 1"))
    assert [(g["group"], g["does"]) for g in recorder.value()["groups"]] == [("0", "restarts")]
    recorder.receive(GroupRests("0", True))  # what was asked for is shown at once
    assert [g["does"] for g in recorder.value()["groups"]] == ["drained"]


def test_one_that_takes_long_is_shown_for_longer(clock: list[float]) -> None:
    recorder, count = made(clock, seconds=0.1)
    recorder.bytes()
    clock[0] += 4.9
    recorder.bytes()
    assert count == [1]
    clock[0] += 0.2
    recorder.bytes()
    assert count == [2]


def test_a_job_that_goes_on_from_a_checkpoint_has_not_made_its_steps_now(clock: list[float]) -> None:
    """Until its first quorum the lighthouse knows no step; from 0 to the checkpoint's counted as a second's work."""
    machine: Any = SimpleNamespace(current=None, reached=0)
    recorder = Recorder(machine, lambda: NO_JOB)
    for step in (0, 0, 5000, 5000, 5010, 5020):
        machine.current, machine.reached = step or None, step
        clock[0] += 1.0
        recorder.tick()
    assert recorder._rate.per_second(clock[0]) == 10.0
