"""Waiting in tests: conditions with deadlines, stretched by one factor for slow machines. No fixed sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from torchft_x import env

T = TypeVar("T")


def scaled(seconds: float) -> float:
    """A deadline stretched by TORCHFT_X_TEST_TIMEOUT_FACTOR (default 1)."""
    return seconds * float(env.read(env.TEST_TIMEOUT_FACTOR, "1") or "1")


def wait_for(condition: Callable[[], T], seconds: float = 10.0, what: str = "the condition") -> T:
    """Poll until `condition()` is truthy and return its value; fail with `what` at the deadline."""
    began = time.monotonic()
    deadline = began + scaled(seconds)
    while True:
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"gave up after {scaled(seconds):.1f} s waiting for {what}")
        time.sleep(0.005 if now - began < 1.0 else 0.02)  # a look at all processes or at a long log costs some
