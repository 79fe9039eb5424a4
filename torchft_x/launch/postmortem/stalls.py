"""Decides whether a step takes too long. Pure: a function of the worker's status (train/introspection/shared_status.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchft_x.timing import TIMING

_TIMES = 5.0  # limit as a multiple of the longest step of this attempt
_OF_TIMEOUT = 0.75  # part of a collective's timeout, after which the stacks and the collectives in flight are gone


def limit(status: Mapping[str, Any]) -> float:
    """Return the seconds that this worker's step may take, derived from its longest step.

    The collective's timeout limits the result, except that twice the longest step is always allowed. Before the first
    commit only the timeout counts, because the first step compiles and loads. For a group that trains apart, the inner
    steps count, during which no timeout runs.
    """
    longest = float(status.get("longest_step") or 0.0)
    if status.get("apart") and status.get("phase") == "idle":
        return max(TIMING.stall_apart, _TIMES * longest)
    latest = _OF_TIMEOUT * float(status.get("timeout") or 60.0)
    if not status.get("commits"):
        return latest
    return max(2 * longest, min(max(TIMING.stall_usual, _TIMES * longest), latest))


def is_stalled(status: Mapping[str, Any]) -> bool:
    """Return whether the worker's step exceeds `limit`. A worker that waits for a quorum, pauses or has left is not stalled."""
    if status.get("paused") or status.get("leaving") or status.get("phase") == "asking":
        return False
    if not status.get("commits") and status.get("phase") == "idle":
        return False  # training has not begun
    return float(status.get("step_seconds") or 0.0) > limit(status)
