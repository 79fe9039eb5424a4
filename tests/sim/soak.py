"""Run the simulated cluster for as long as asked: ``scripts/soak --minutes 60``.

One process per requested core runs seeds of its own. At the end (or at Ctrl-C) the soak and its findings are added to a
JSON file and to the sums in it. A violation stops everything: its trace and the command that replays it are printed,
and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from tests.sim import swarm
from tests.sim.invariants import Violation

BATCH = 10.0  # seconds between two reports of a worker
SAY_EVERY = 60.0  # seconds between two lines of output
STRIDE = 1 << 32  # number of seeds reserved for one worker
_USUAL = swarm.STANDBY


def work(seed: int, until: float, standby: float = _USUAL) -> tuple[swarm.Total, int, str]:
    """Run seed after seed for `BATCH` seconds, but not beyond `until`, or until a violation. Run at least one.

    Return the total of the runs, the next seed, and the finding ('' if there is none).
    """
    total, swarm.STANDBY, end = swarm.Total(), standby, min(until, time.monotonic() + BATCH)
    try:
        while not total.runs or time.monotonic() < end:
            total.merge(swarm.run(seed))
            seed += 1
    except KeyboardInterrupt:
        pass
    except Exception as e:  # an exception in the machines or the simulator is a finding, too
        replay = f"\nReplay it: python -m tests.sim.run --seed {seed}"
        found = str(e) if isinstance(e, Violation) else f"{type(e).__name__}: {e}{replay}"
        return total, seed, found if standby == _USUAL else f"{found} --standby {standby:g}"
    return total, seed, ""


def soak(minutes: float, processes: int, first_seed: int, standby: float) -> tuple[swarm.Total, list[str]]:
    """Run the workers. Return the figures and the violations found."""
    total, violations = swarm.Total(), list[str]()
    began = said = time.monotonic()
    until = began + 60.0 * minutes

    def take(future: Future[tuple[swarm.Total, int, str]]) -> int:
        part, seed, found = future.result()
        total.merge(part)
        violations.extend([found] if found else [])
        return seed

    with ProcessPoolExecutor(processes, mp.get_context("spawn")) as pool:
        running = {pool.submit(work, first_seed + STRIDE * i, until, standby) for i in range(processes)}
        try:
            while running and not violations:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                seeds = [take(future) for future in done]
                if time.monotonic() < until and not violations:
                    running |= {pool.submit(work, seed, until, standby) for seed in seeds}
                if time.monotonic() - said > SAY_EVERY:
                    said = time.monotonic()
                    print(
                        f"{(said - began) / 60:.0f} min: {total.runs} runs, {total.faults.total()} faults", flush=True
                    )
        except KeyboardInterrupt:
            print("stopped")
        for future in running:
            take(future)
    return total, violations


def add_to_file(path: Path, total: swarm.Total, violations: list[str], told: dict[str, Any]) -> dict[str, Any]:
    """Add this soak to the JSON file: to the list of soaks and to the sums of all of them. Return the sums.

    The entry holds the headline of each finding and `told` (time, commit, options).
    """
    book: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    numbers = {"runs": total.runs, "events": total.events, "commits": total.commits, "faults": total.faults.total()}
    book.setdefault("soaks", []).append({**told, **numbers, "found": [_headline(word) for word in violations]})
    added = {**vars(total), "violations": len(violations), "cpu_seconds": told["cpu_seconds"]}
    sums: dict[str, Any] = book.setdefault("sums", {})
    for key, value in added.items():
        if isinstance(value, Counter):
            sums[key] = dict(sorted((value + Counter(sums.get(key, {}))).items()))
        else:
            sums[key] = round(sums.get(key, 0) + value, 1)
    sums["faults_total"] = sum(sums["faults"].values())
    path.write_text(json.dumps(book, indent=1) + "\n", encoding="utf-8")
    return sums


def _headline(finding: str) -> str:
    """Return the line ``I8 is violated at 18.1 s, seed 7: ...`` from a finding, or the first line of a crash."""
    lines = finding.splitlines()
    return next((line for line in lines if " is violated at " in line), lines[0])


def _commit() -> str:
    """Return the commit of the working tree, with "+" if the tree has changed since."""
    said = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False)
    return said.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--first-seed", type=int, default=None, help="default: from the clock, so that no two soaks agree"
    )
    parser.add_argument("--total", type=Path, default=None, help="JSON file to add the figures to")
    parser.add_argument("--standby", type=float, default=_USUAL, help="how likely a run has two lighthouses")
    options = parser.parse_args()
    first_seed = options.first_seed if options.first_seed is not None else int(time.time()) << 12
    began = time.monotonic()
    total, violations = soak(options.minutes, options.processes, first_seed, options.standby)
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s on {options.processes} processes: {total}")
    print(f"{total.events / seconds / options.processes:.0f} events a second and process, {len(violations)} violations")
    if options.total is not None:
        told = {
            "day": time.strftime("%Y-%m-%d", time.gmtime()),
            "commit": _commit(),
            "first_seed": first_seed,
            "standby": options.standby,
            "cpu_seconds": round(seconds * options.processes, 1),
        }
        sums = add_to_file(options.total, total, violations, told)
        print(f"so far: {sums['faults_total']} faults in {sums['runs']} runs, {sums['violations']} violations")
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
