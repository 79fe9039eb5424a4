"""The times of torchft_x.timing: their order, their scale, and where it comes from."""

from __future__ import annotations

import subprocess
import sys

from tests.util import scaled
from torchft_x import env
from torchft_x.timing import Timing


def test_the_scale_comes_from_the_environment() -> None:
    assert env.time_scale({}) == env.time_scale({env.TIME_SCALE: ""}) == 1.0
    assert env.time_scale({env.TIME_SCALE: "2.25"}) == 2.25
    code = "from torchft_x.core.membership.failure_detector import SilenceLimits; print(SilenceLimits().host)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={env.TIME_SCALE: "2"},
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(30),
    )
    assert float(done.stdout) == 2 * Timing().silence_host
