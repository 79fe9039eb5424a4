"""The simulated cluster does the same in each process."""

from __future__ import annotations

from tests.process.programs import python


def test_the_trace_does_not_depend_on_hashes() -> None:
    words = ("-m", "tests.sim.digest", "--first", "6", "--seeds", "1")
    first, second = (python(*words, PYTHONHASHSEED=seed, TORCHFT_X_TIME_SCALE="1").stdout for seed in "01")
    assert first == second
