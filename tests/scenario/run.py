"""Play one scenario in the simulator: ``python -m tests.scenario.run NAME [--seed N] [--trace]``."""

from __future__ import annotations

import argparse
import sys

from tests.scenario.play import longest_stall
from tests.scenario.simulated import Simulation, finish
from tests.scenario.stories import STORIES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenario.run", description=__doc__)
    parser.add_argument("name", choices=STORIES)
    parser.add_argument("--seed", type=int, default=0, help="decides what the scenario leaves open")
    parser.add_argument("--trace", action="store_true", help="everything that happened in the simulator")
    options = parser.parse_args()
    stage = Simulation(STORIES[options.name], options.seed, keep=None if options.trace else 400)
    code = 0
    try:
        finish(stage)
    except AssertionError as e:
        print(str(e).splitlines()[-1] if options.trace else e)
        code = 1
    if options.trace:
        print("\n".join(stage.world.trace.lines()))
    stall, before = longest_stall(stage.record)
    print(f"{stage.record.step} steps, the longest stall {stall:.2f} s, before step {before}")
    return code


if __name__ == "__main__":
    sys.exit(main())
