"""What a save does between its pieces."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tests.util import scaled, wait_for
from torchft_x.train.checkpoint import saving
from torchft_x.train.checkpoint.saving import Pace, waited_elsewhere


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="needs a Linux kernel that counts waits (CONFIG_SCHED_INFO)"
)
def test_threads_that_share_a_core_wait_for_it() -> None:
    before, end = waited_elsewhere(), threading.Event()
    cores = os.sched_getaffinity(0)

    def compute() -> None:
        os.sched_setaffinity(threading.get_native_id(), {min(cores)})
        while not end.is_set():
            sum(range(200_000))
            time.sleep(0)  # lets go of the interpreter, so that both want the core

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: waited_elsewhere() > before, scaled(20), "a thread waits for the core")
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_who_waits_for_a_save_ends_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter(range(0, 1_000_000, 1000))  # a thousand seconds more at each look
    monkeypatch.setattr(saving, "waited_elsewhere", lambda: float(next(waits)))
    hurry = threading.Event()
    pace = Pace(hurry, most=scaled(60))
    pace._began -= scaled(60) * 3  # the piece took minutes, so it would rest until half of the time is over
    resting = threading.Thread(target=pace)
    resting.start()
    resting.join(0.2)
    assert resting.is_alive()
    hurry.set()
    resting.join(scaled(10))
    assert not resting.is_alive()


def test_no_rest_when_half_of_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter(range(0, 1_000_000, 1000))
    monkeypatch.setattr(saving, "waited_elsewhere", lambda: float(next(waits)))
    pace = Pace(threading.Event(), most=0.0)
    pace._began -= scaled(60)
    resting = threading.Thread(target=pace, daemon=True)
    resting.start()
    resting.join(scaled(10))
    assert not resting.is_alive()
