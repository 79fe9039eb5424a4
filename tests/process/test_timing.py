"""The times of torchft_x.timing: their order, their scale, and where it comes from."""

from __future__ import annotations

from tests.process.programs import python
from torchft_x import env
from torchft_x.timing import Timing


def test_the_scale_comes_from_the_environment() -> None:
    assert env.time_scale({}) == env.time_scale({env.TIME_SCALE: ""}) == 1.0
    assert env.time_scale({env.TIME_SCALE: "2.25"}) == 2.25
    code = "from torchft_x.core.membership.failure_detector import SilenceLimits; print(SilenceLimits().host)"
    assert float(python("-c", code, **{env.TIME_SCALE: "2"}).stdout) == 2 * Timing().silence_host
