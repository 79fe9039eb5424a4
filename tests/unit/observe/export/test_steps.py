"""The hook for TensorBoard and the like."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from torchft_x.observe import EventLog
from torchft_x.observe.export import on_step


def test_each_committed_step_with_its_numbers() -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    end = on_step(lambda step, numbers: seen.append((step, dict(numbers))))
    log, other = EventLog(None, "trainer", rank=0, pid=7), EventLog(None, "trainer", rank=1)
    log.emit("drop", step=3)
    log.emit("member_lost", lost="1:x", reason="gone")
    log.emit("member_lost", lost="2:x", reason="done", left=True)
    log.emit("heal_end", duration=0.5)
    log.emit("metrics", step=3, loss=1.25, note="text")
    for each in (log, other):
        each.emit("commit", step=3, participants=2, duration=0.02, reduction=0.01, bytes=400)
    log.emit("commit", step=4, participants=2, duration=0.03)
    end()
    log.emit("commit", step=5, participants=2, duration=0.03)
    first = {"step_seconds": 0.02, "reduce_seconds": 0.01, "groups": 2, "bytes": 400, "dropped": 1, "losses": 1}
    assert seen == [
        (4, {**first, "heal_seconds": 0.5, "loss": 1.25}),
        (5, {"step_seconds": 0.03, "groups": 2, "dropped": 1, "losses": 1}),
    ]


def test_what_it_raises_ends_no_training() -> None:
    def bad(_step: int, _numbers: Mapping[str, float]) -> None:
        raise OSError("disk full")

    end = on_step(bad)
    with pytest.warns(RuntimeWarning, match="disk full"):
        EventLog(None, "trainer").emit("commit", step=1)
    end()
