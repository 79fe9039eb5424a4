"""What is kept of a lighthouse, and how often the overview is made."""

from __future__ import annotations

from tests.unit.rpc.lighthouse.page.test_recorder import (
    clock,  # noqa: F401
    made,
)


def test_one_that_takes_long_is_shown_for_longer(clock: list[float]) -> None:
    recorder, count = made(clock, seconds=0.1)
    recorder.bytes()
    clock[0] += 4.9
    recorder.bytes()
    assert count == [1]
    clock[0] += 0.2
    recorder.bytes()
    assert count == [2]
