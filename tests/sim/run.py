"""Replay one run: ``python -m tests.sim.run --seed N [--trace] [--shrink]``."""

from __future__ import annotations

import argparse
import sys

from tests.sim import swarm
from tests.sim.faults import Fault
from tests.sim.invariants import Violation


def shrink(seed: int, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Drop faults as long as the same invariant is violated. Return the shortest failing schedule found, or all if none fails."""
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--trace", action="store_true", help="print everything that happens, not just the end")
    parser.add_argument("--shrink", action="store_true", help="if it fails, drop faults as long as it still fails")
    parser.add_argument("--standby", type=float, default=swarm.STANDBY, help="how likely a run has two lighthouses")
    options = parser.parse_args()
    swarm.STANDBY = options.standby
    config, faults = swarm.scenario(options.seed)
    print(config)
    print(f"{len(faults)} faults")
    try:
        if options.shrink:
            faults = shrink(options.seed, faults)
            print(*faults, sep="\n")
        world, report = swarm.play(options.seed, faults, trace=None)
    except Violation as e:
        print("\n".join(e.lines) if options.trace else "", e if not options.trace else e.headline, sep="\n")
        return 1
    if options.trace:
        print("\n".join(world.trace.lines()))
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
