"""Make a failing schedule small: drop faults for as long as the same invariant is still violated."""

from __future__ import annotations

from tests.sim import swarm
from tests.sim.faults import Fault
from tests.sim.invariants import Violation


def shrink(seed: int, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """The shortest failing schedule found; the schedule itself if it does not fail."""
    invariant = _violated(seed, faults)
    if invariant is None:
        return faults
    size = max(1, len(faults) // 2)
    while size:
        start = 0
        while start < len(faults):
            fewer = faults[:start] + faults[start + size :]
            if _violated(seed, fewer) == invariant:
                faults = fewer
            else:
                start += size
        size //= 2
    return faults


def _violated(seed: int, faults: tuple[Fault, ...]) -> str | None:
    try:
        swarm.run(seed, faults, trace=0)
    except Violation as e:
        return e.invariant
    return None
