"""Play one file: ``python -m tests.scenario.run NAME|FILE [--seed N] [--trace] [--real]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.scenario import networks
from tests.scenario.language import ScenarioError, read
from tests.scenario.play import judge, longest_stall, play
from tests.scenario.values import Scenario

FILES = Path(__file__).with_name("files")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenario.run", description=__doc__)
    parser.add_argument("file", help=f"a file, or the name of one in {FILES}")
    parser.add_argument("--seed", type=int, default=0, help="of the simulator")
    parser.add_argument("--trace", action="store_true", help="everything that happened in the simulator")
    parser.add_argument("--real", action="store_true", help="with real processes; the run is kept")
    options = parser.parse_args()
    path = Path(options.file)
    try:
        scenario = read(path if path.exists() else FILES / f"{options.file}.txt")
    except (ScenarioError, OSError) as e:
        print(e, file=sys.stderr)
        return 2
    return _real(scenario) if options.real else _simulated(scenario, options.seed, options.trace)


def _simulated(scenario: Scenario, seed: int, trace: bool) -> int:
    from tests.scenario.simulated import Simulation, finish

    stage = Simulation(scenario, seed, keep=None if trace else 400)
    code = 0
    try:
        finish(stage)
    except AssertionError as e:
        print(str(e).splitlines()[-1] if trace else e)
        code = 1
    if trace:
        print("\n".join(stage.world.trace.lines()))
    _summary(stage.record.step, *longest_stall(stage.record))
    return code


def _real(scenario: Scenario) -> int:
    from tests.scenario.check import unequal
    from tests.scenario.real import cluster

    missing = networks.missing()
    if why := scenario.only_simulated or (missing if scenario.cuts else ""):
        print(f"It can't be played with real processes: {why}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix=f"{scenario.name}-"))
    print(f"Run directory: {folder / 'run'}", flush=True)
    try:
        with cluster(scenario, folder, networks=not missing) as stage:
            play(scenario, stage)
        findings = [*judge(scenario, stage.record), *unequal(stage.dumps)]
    except AssertionError as e:
        findings = [str(e)]
    print(*findings, sep="\n")
    _summary(stage.record.step, *longest_stall(stage.record))
    return 1 if findings else 0


def _summary(step: int, stall: float, before: int) -> None:
    print(f"{step} steps, the longest stall {stall:.2f} s, before step {before}")


if __name__ == "__main__":
    sys.exit(main())
