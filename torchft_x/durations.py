"""Durations: seconds inside, seconds or a timedelta from users. Standard library only."""

from __future__ import annotations

from datetime import timedelta

from torchft_x.errors import ConfigError

Seconds = float | timedelta


def seconds(value: Seconds, what: str = "timeout") -> float:
    """Return a positive, finite duration as float seconds. Raise `ConfigError`, naming `what`, for any other value."""
    try:
        number = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 < number < float("inf"):
        raise ConfigError(f"{what} is {value!r}; it must be a positive number of seconds, or such a timedelta.")
    return number
