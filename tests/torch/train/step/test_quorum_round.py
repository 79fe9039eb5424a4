"""The training thread waits for a quorum that its own thread has asked for."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from torchft_x.core.training.step_clock import StepTimeEstimate, WaitBudget
from torchft_x.errors import DeadlineError
from torchft_x.timing import TIMING
from torchft_x.train.step import quorum_round
from torchft_x.train.step.quorum_round import QuorumOptions, QuorumRound


def test_it_waits_as_long_as_the_ask_which_anothers_pause_prolongs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gave up after quorum_timeout + timeout + 5 s, during a longer pause of another group."""
    monkeypatch.setattr(quorum_round, "TIMING", replace(TIMING, late_round=0.0))
    waits = threading.Event()
    context: Any = SimpleNamespace(
        step_time=StepTimeEstimate(),
        waits=WaitBudget(0.0, most=0.0, tell=lambda on: waits.set() if on else None),
        options=SimpleNamespace(timeout=0.0),
        failures=SimpleNamespace(lock=contextlib.nullcontext()),
        step=SimpleNamespace(phase=None),
        status=SimpleNamespace(publish=lambda: None),
    )
    terms: Any = None
    round = QuorumRound(context, terms, QuorumOptions(0.0), in_place=False, counts_after_heal=False, previous=None)

    def answer(_seconds: float) -> Any:
        waits.wait()
        raise DeadlineError("the pause has ended, and nobody came")

    round._asked = answer
    threading.Thread(target=round.run, daemon=True).start()
    with pytest.raises(DeadlineError, match="nobody came"):
        round.wait_ready()
