"""Every known wrong variant, hunted down by the explorer: ``python -m tests.sim.hunt [--json FILE] [--name NAME]``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.sim.untimed.model import Model
from tests.sim.untimed.search import Search
from tests.sim.untimed.walk import walks
from tests.sim.untimed.words import story
from tests.sim.variants import VARIANTS, Variant


@dataclass(frozen=True)
class Catch:
    """How a variant was found."""

    variant: str
    left_out: str
    found: str  # the invariant; empty: it was not found
    text: str
    how: str
    seconds: float  # of the processor
    states: int
    length: int  # of the trace, in actions
    faults: int  # in it
    seed: int | None  # of the random schedule, if it was found by one
    harm: str
    note: str = ""


def hunt(variant: Variant, *, seconds: float = 60.0) -> tuple[Catch, str]:
    """The variant's catch, and the story of it."""
    began, r, watch = time.process_time(), variant.rules, variant.finds | {"X"}
    seed = None
    with variant.applied():
        if variant.walks:
            model = Model(r)
            total = walks(model, seconds=seconds, watch=watch)
            found, seed, states, text = total.finding, total.seed, total.actions, str(total)
        else:
            search = Search(r)
            report = search.explore(seconds=seconds, watch=watch)
            model, states, text = search.model, report.states, str(report)
            found = report.findings[0] if report.findings else None
        tale = story(model, found.actions) if found else text
    how = f"{r.groups} groups, {r.steps} steps, {r.faults} faults{', vote' if r.vote else ''}"
    actions = found.actions if found else []
    catch = Catch(
        variant.name, variant.left_out, found.invariant if found else "", found.text if found else "", how,
        round(time.process_time() - began, 2), states, len(actions), sum(a[0] in r.kinds for a in actions),
        seed, variant.harm, variant.note,
    )  # fmt: skip
    return catch, tale


def _seed(catch: Catch) -> str:
    return "" if catch.seed is None else f", seed {catch.seed}"


def table(catches: Iterable[Catch]) -> str:
    """For docs/simulator_net.md."""
    rows = [
        f"| {c.variant} | {c.left_out} | {c.harm} | {c.found or 'not found'} | {c.seconds:.1f} | {c.states} | {c.length} | "
        f"{c.faults}{_seed(c)} | {c.how} |"
        for c in catches
    ]
    head = "| variant | left out | harm | found as | seconds | states | actions | faults | world |"
    return "\n".join([head, "|---|---|---|---|---:|---:|---:|---|---|", *rows])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.hunt", description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", action="store_true", help="once more as the table of docs/simulator_net.md")
    parser.add_argument("--name", choices=sorted(VARIANTS), help="this one only, with its story")
    options = parser.parse_args()
    catches: list[Catch] = []
    for variant in VARIANTS.values():
        if options.name in (None, variant.name):
            catch, tale = hunt(variant)
            catches.append(catch)
            print(f"{catch.variant:12} {catch.found or '-':3} {catch.seconds:6.1f} s {catch.states:8} states "
                  f"{catch.length:3} actions, {catch.faults} faults{_seed(catch)}  {catch.left_out}",
                  flush=True)  # fmt: skip
            if options.name:
                print(tale, catch.text, sep="\n")
    if options.table:
        print(table(catches))
    if options.json:
        options.json.write_text(json.dumps([asdict(c) for c in catches], indent=1) + "\n", encoding="utf-8")
    return 0 if all(c.found for c in catches) else 1


if __name__ == "__main__":
    sys.exit(main())
