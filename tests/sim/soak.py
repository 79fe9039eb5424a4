"""Run the simulated cluster for as long as asked: ``scripts/soak --minutes 60``.

One process per core asked for, each with seeds of its own. At the end (or at Ctrl-C) the soak is added to a JSON file,
with what it found and to the sums; a violation stops everything, prints its trace and the command that replays it, and
ends with code 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from queue import Empty
from typing import Any

from tests.sim import swarm
from tests.sim.invariants import Violation

REPORT_EVERY = 10.0  # seconds between two reports of a worker
SAY_EVERY = 60.0  # seconds between two lines on the screen
STRIDE = 1 << 32  # seeds of one worker
_USUAL = swarm.STANDBY


def work(first_seed: int, until: float, results: Any, standby: float = swarm.STANDBY) -> None:
    """One process: seed after seed until the time is over or something is violated; one at least, however late."""
    total, sent, seed = swarm.Total(), time.monotonic(), first_seed
    swarm.STANDBY = standby
    try:
        while seed == first_seed or time.monotonic() < until:
            try:
                total.add(swarm.run(seed))
            except Violation as e:
                results.put((total, seed, f"{e}{_option(standby)}"))
                return
            except Exception as e:  # the machines or the simulator broke: that is a finding, too
                results.put(
                    (
                        total,
                        seed,
                        f"{type(e).__name__}: {e}\nReplay it: python -m tests.sim.run --seed {seed}{_option(standby)}",
                    )
                )
                return
            seed += 1
            if time.monotonic() - sent > REPORT_EVERY:
                results.put((total, seed, ""))
                total, sent = swarm.Total(), time.monotonic()
    except KeyboardInterrupt:
        pass
    results.put((total, seed, None))


def _option(standby: float) -> str:
    """What the command that replays a run needs besides."""
    return "" if standby == _USUAL else f" --standby {standby:g}"


def soak(
    minutes: float, processes: int, first_seed: int, standby: float = swarm.STANDBY
) -> tuple[swarm.Total, list[str]]:
    """The figures, and what was violated."""
    context = mp.get_context("spawn")
    results: Any = context.Queue()
    began = said = time.monotonic()
    until = began + 60.0 * minutes
    workers = [
        context.Process(target=work, args=(first_seed + STRIDE * i, until, results, standby)) for i in range(processes)
    ]
    for worker in workers:
        worker.start()
    total, running = swarm.Total(), processes
    violations: list[str] = []
    try:
        while running and not violations:
            try:
                part, _, word = results.get(timeout=5.0)
            except Empty:
                if not any(w.is_alive() for w in workers):
                    violations.append("A worker ended without a word.")
                continue
            total.merge(part)
            running -= word is None
            if word:
                violations.append(word)
            if time.monotonic() - said > SAY_EVERY:
                said = time.monotonic()
                print(f"{(said - began) / 60:.0f} min: {total.runs} runs, {total.faults.total()} faults", flush=True)
    except KeyboardInterrupt:
        print("stopped")
    for worker in workers:
        worker.terminate()
        worker.join()
    return total, violations


def add_to_file(path: Path, total: swarm.Total, violations: list[str], told: dict[str, Any]) -> dict[str, Any]:
    """Add this soak to the file: to its list, with what was found (the line of each finding that says what) and
    `told` (when, of which commit, how), and to the sums of all that are in it."""
    book: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = [_headline(word) for word in violations]
    numbers = {"runs": total.runs, "events": total.events, "commits": total.commits, "faults": total.faults.total()}
    book.setdefault("soaks", []).append({**told, **numbers, "found": found})
    sums: dict[str, Any] = book.get("sums", {})
    counters: dict[str, Counter[str]] = {"faults": total.faults, "modes": total.modes, "figures": total.figures}
    counters = {name: Counter(sums.get(name, {})) + counter for name, counter in counters.items()}
    added: dict[str, Any] = {k: v for k, v in asdict(total).items() if k not in counters}
    added.update(violations=len(violations), cpu_seconds=told["cpu_seconds"])
    sums = {key: round(sums.get(key, 0) + value, 1) for key, value in added.items()}
    sums["faults_total"] = counters["faults"].total()
    sums.update({name: dict(sorted(counter.items())) for name, counter in counters.items()})
    book["sums"] = sums
    path.write_text(json.dumps(book, indent=1) + "\n", encoding="utf-8")
    return sums


def _headline(finding: str) -> str:
    """``I8 is violated at 18.1 s, seed 7: ...``, below the trace that led to it; of a crash its first line."""
    lines = finding.splitlines()
    return next((line for line in lines if " is violated at " in line), lines[0])


def _commit() -> str:
    """Of the working tree; "+" if it was changed since."""
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
    parser.add_argument("--standby", type=float, default=swarm.STANDBY, help="how likely a run has two lighthouses")
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
