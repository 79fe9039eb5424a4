"""Does a step last too long? Pure: the worker's own status is given (train/introspection/shared_status.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchft_x.timing import TIMING

_TIMES = 5.0  # the longest step of this life
_OF_TIMEOUT = 0.75  # of a collective's timeout: after it the stacks and the collectives in flight are gone


def limit(status: Mapping[str, Any]) -> float:
    """Seconds this worker's step may last. Steps of its own are the measure; a timeout cuts it short, unless such long
    steps have been seen. Of a group that trains apart the inner steps count, and while it makes them no timeout runs. Before the first commit only the timeout counts: a first step compiles and loads."""
    longest = float(status.get("longest_step") or 0.0)
    if status.get("apart") and status.get("phase") == "idle":
        return max(TIMING.stall_apart, _TIMES * longest)
    latest = _OF_TIMEOUT * float(status.get("timeout") or 60.0)
    if not status.get("commits"):
        return latest
    return max(2 * longest, min(max(TIMING.stall_usual, _TIMES * longest), latest))


def is_stalled(status: Mapping[str, Any]) -> bool:
    """Who waits for a quorum is not stalled itself; an announced pause is none, and who has left takes no steps."""
    if status.get("paused") or status.get("leaving") or status.get("phase") == "asking":
        return False
    if not status.get("commits") and status.get("phase") == "idle":
        return False  # it has not begun
    return float(status.get("step_seconds") or 0.0) > limit(status)
