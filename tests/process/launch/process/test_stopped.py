"""A real supervisor reports a worker that is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.process.launch.driven import SLEEPER, Driven, drive  # noqa: F401
from tests.util import wait_for
from torchft_x.timing import TIMING


def test_a_worker_that_is_stopped_goes_on_or_can_be_ended(drive: Callable[..., Driven]) -> None:
    run = drive(SLEEPER, grace=0.3)
    worker = run.worker()
    (started,) = run.reports("started")
    os.kill(worker, signal.SIGSTOP)
    wait_for(lambda: run.reports("halted"), what="the stop to be told")
    (reported,) = run.reports("halted")
    assert (reported["attempt_token"], reported["who"]) == (started["attempt_token"], "worker 0")
    assert TIMING.stop_report <= reported["seconds"] < 1.6 * TIMING.stop_report
    os.kill(worker, signal.SIGCONT)
    wait_for(lambda: len(run.reports("halted")) == 2, what="its end to be told")
    assert run.reports("halted")[1]["who"] == ""
    os.kill(worker, signal.SIGSTOP)
    wait_for(lambda: len(run.reports("halted")) == 3, what="the second stop to be told")
    assert len(run.reports("started")) == 1
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM  # by SIGKILL, after the grace
