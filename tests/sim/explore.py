"""Breadth first through everything that can happen: ``python -m tests.sim.explore --groups 2 --steps 1 --faults 1``."""

from __future__ import annotations

import argparse
import sys

from tests.sim.untimed.model import Model
from tests.sim.untimed.search import Report, Search
from tests.sim.untimed.values import KINDS, Rules
from tests.sim.untimed.walk import walks
from tests.sim.untimed.words import story


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.explore", description=__doc__)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="of each group")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--vote", action="store_true", help="with the vote between groups")
    parser.add_argument("--no-grants", action="store_true", help="every step asks the lighthouse")
    parser.add_argument("--init-sync", action="store_true")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of faults")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--most", type=int, default=1, help="stop after so many violations")
    parser.add_argument("--walks", type=int, metavar="SEED", help="random schedules instead, from this seed on")
    parser.add_argument("--quiet", action="store_true")
    o = parser.parse_args()
    rules = Rules(
        groups=o.groups, ranks=o.ranks, steps=o.steps, faults=o.faults, vote=o.vote,
        grants=not o.no_grants, init_sync=o.init_sync, kinds=tuple(k for k in o.kinds.split(",") if k),
    )  # fmt: skip
    if o.walks is not None:
        return _walk(rules, o.walks, 60.0 * o.minutes)
    search = Search(rules)

    def progress(report: Report) -> None:
        if not o.quiet:
            print(f"depth {report.depth}: {report.states} states, {report.transitions} transitions, "
                  f"{report.seconds:.1f} s", flush=True)  # fmt: skip

    report = search.explore(seconds=60.0 * o.minutes, most=o.most, progress=progress)
    print(report)
    for finding in report.findings:
        print()
        print(story(search.model, finding.actions))
        print(finding)
    return 1 if report.findings else 0


def _walk(rules: Rules, seed: int, seconds: float) -> int:
    model = Model(rules)
    total = walks(model, seconds=seconds, first=seed)
    if total.finding is not None:
        print(story(model, total.finding.actions))
    print(total)
    return 0 if total.finding is None else 1


if __name__ == "__main__":
    sys.exit(main())
