"""Share slots out among groups that train apart (LocalSGD, DiLoCo), one slot for each inner step.

Between two exchanges each group has a *lane* of its own: `period` slots in a row, and when it has used them up `period` more
behind those of the others. An exchange commits the slots that its members have trained; each says how many these are in the
reduction that precedes the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchft_x.core.data.ranges import ranges
from torchft_x.core.types import Ranges


def lane_slot(step: int, lane: int, lanes: int, period: int) -> int:
    """Return the slot of inner step `step` (from 0, since the last exchange) in lane `lane` of `lanes`."""
    turn, rest = divmod(step, period)
    return (turn * lanes + lane) * period + rest


def lane_slots(steps: Sequence[int], period: int) -> Ranges:
    """Return the slots of the first `steps[i]` inner steps of each lane i."""
    found = []
    for lane, count in enumerate(steps):
        for turn in range(-(-count // period)):
            first = lane_slot(turn * period, lane, len(steps), period)
            found.append((first, first + min(period, count - turn * period)))
    return ranges(found)
