"""Settings of a lighthouse: what is refused, and that what is just allowed isn't."""

from __future__ import annotations

import pytest

from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.errors import ConfigError


@pytest.mark.parametrize("field", ["min_replicas", "grant_steps"])
def test_counts_begin_at_1(field: str) -> None:
    assert getattr(LighthouseConfig(**{field: 1}), field) == 1
    with pytest.raises(ConfigError, match=f"{field} is 0; "):
        LighthouseConfig(**{field: 0})


@pytest.mark.parametrize("field", ["tick", "lease", "grant_seconds"])
def test_times_that_must_pass(field: str) -> None:
    assert getattr(LighthouseConfig(**{field: 0.001}), field) == 0.001
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match=f"{field} is {bad}; it must be a positive number of seconds"):
            LighthouseConfig(**{field: bad})


@pytest.mark.parametrize("field", ["join_timeout", "lease_margin", "hello_grace"])
def test_times_that_may_be_none_at_all(field: str) -> None:
    assert getattr(LighthouseConfig(**{field: 0.0}), field) == 0.0
    for bad in (-0.001, float("nan")):
        with pytest.raises(ConfigError, match=f"{field} is {bad}; it can't be negative"):
            LighthouseConfig(**{field: bad})
