"""How the lighthouse copes with many groups: ``python -m tests.sim.scale --groups 10000 --steps 1000``.

Members join, commit, die, come back as a new life, stop, are cut off and leave, and the lighthouse loses its memory
now and then; rules and books are checked on the way (`scale_checks`). Prints a table of events per second.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from typing import Any

from tests.sim.scale_faults import Churn
from tests.sim.scale_world import Options, World

COLUMNS = ("groups", "mode", "steps", "quorums", "events", "cpu_s", "wall_s", "events_per_s")


def simulate(options: Options) -> tuple[World, dict[str, Any]]:
    """Run it; raises `scale_checks.ViolationError`. Also returned: the figures."""
    world = World(options)
    Churn(world).start()
    started, cpu = time.perf_counter(), time.process_time()
    gc.freeze()  # what others have left in this process isn't looked through with it
    gc.disable()  # left to itself it looks through all members several times a second; `World._restart` collects
    try:
        world.go()
    finally:
        gc.enable()
        gc.unfreeze()
    return world, figures(world, time.perf_counter() - started, time.process_time() - cpu)


def figures(world: World, wall: float, cpu: float) -> dict[str, Any]:
    """Times are CPU time but for `wall_s`: the machine may be shared."""
    o = world.options
    us = {name: 1e6 * spent / world.sampled[name] for name, spent in world.seconds.items()}
    plain = sum(us[name] * world.count[name] for name in us if name != "Tick")
    (e0, t0), (e1, t1), (e2, t2) = world.halves
    return {
        "groups": o.groups,
        "mode": "grants" if o.grants else "one-step",
        "steps": world.steps,
        "deaths_per_step_and_10000": o.deaths,
        "quorums": len(world.quorum_seconds),
        "events": world.events,
        "cpu_s": round(cpu, 2),
        "wall_s": round(wall, 2),
        "virtual_s": round(world.now, 1),
        "events_per_s": round(world.events / cpu),
        "us_per_event": round(plain / max(1, sum(world.count[name] for name in us if name != "Tick")), 2),
        "ms_per_quorum": round(1e3 * statistics.median(world.quorum_seconds), 3),
        "ms_per_quorum_worst": round(1e3 * max(world.quorum_seconds), 3),
        "ms_per_tick": round(us.get("Tick", 0.0) / 1e3, 3),
        "second_half_to_first": round((t2 - t1) / (e2 - e1) / ((t1 - t0) / (e1 - e0)), 2),
        "recounts": world.checks.recounts,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "counts": dict(sorted(world.count.items())),
        "us_by_event": {name: round(value, 2) for name, value in sorted(us.items())},
        "seed": o.seed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = Options()
    parser.add_argument("--groups", type=int, default=defaults.groups)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--grants", action="store_true", help="members run on inside a grant")
    parser.add_argument("--churn", type=float, default=defaults.deaths, help="deaths per step and 10,000 groups")
    parser.add_argument("--troubles", type=float, default=defaults.troubles, help="stops, cuts, ... likewise")
    parser.add_argument("--restarts", type=int, default=defaults.restarts, help="steps between lighthouse restarts")
    parser.add_argument("--books", type=int, default=0, help="events between recounts; 0: twenty per group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="", metavar="FILE", help="append the figures as a line")
    args = parser.parse_args()
    options = Options(
        groups=args.groups, steps=args.steps, grants=args.grants, deaths=args.churn, troubles=args.troubles,
        restarts=args.restarts, books=args.books, seed=args.seed,
    )  # fmt: skip
    _, found = simulate(options)
    if args.json:
        with open(args.json, "a", encoding="utf-8") as f:
            f.write(json.dumps(found) + "\n")
    print("  ".join(f"{c}={found[c]}" for c in COLUMNS))
    print({k: v for k, v in found.items() if k not in COLUMNS})
    return 0


if __name__ == "__main__":
    sys.exit(main())
