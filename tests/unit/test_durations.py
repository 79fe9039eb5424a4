"""Seconds or a timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from torchft_x.durations import seconds
from torchft_x.errors import ConfigError


@pytest.mark.parametrize(("given", "found"), [(2, 2.0), (0.5, 0.5), (timedelta(milliseconds=1500), 1.5), ("3", 3.0)])
def test_both_forms(given: Any, found: float) -> None:
    assert seconds(given) == found


@pytest.mark.parametrize(
    "given", [0, -1, float("nan"), float("inf"), timedelta(0), timedelta(seconds=-1), "soon", None]
)
def test_what_is_no_duration_is_named(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"quorum_timeout is .*; it must be a positive number of seconds"):
        seconds(given, "quorum_timeout")
