"""Run tests against mutants of core: `python -m tests.mutation.run --results /tmp/mutants.jsonl`.

The tests of core come first, those of the simulator take what survives. Results are added to the file as they come,
and a run that is started again goes on where it ended: only mutants of functions that were edited meanwhile meet the
tests again, and with `--again` those that had survived. What survives must stand in survivors.txt with a reason, or
it is a rule that nothing checks: exit code 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.mutation.mutants import RULE, Mutant, mutants, skipped
from tests.mutation.worker import Lab, Result

ROOT = Path(__file__).parent.parent.parent
CORE = ROOT / "torchft_x" / "core"
SURVIVORS = Path(__file__).with_name("survivors.txt")
STAGES = {
    "core": ["tests/core"],
    "sim": [
        "tests/sim/test_protocol.py",
        "tests/sim/test_world.py",
        "tests/sim/test_invariants.py",
        "tests/sim/test_variants.py",
        "tests/sim/test_scale.py",
        "tests/sim/test_several.py",
        "tests/scenario/test_simulated.py",
    ],
}
# Tests that start a process, which would not have the mutant, or that measure time.
_NOT = "not hashes_to and not depend_on_hashes and not costs_the_same"


def chosen(names: list[str], sample: int, seed: int, rules: bool = False) -> list[Mutant]:
    """Of these modules of core, by dotted name below core; none: of all."""
    found = [m for name in names or modules() for m in mutants(name, source_of(name), rules=rules)]
    return some(found, sample, seed)


def some(found: list[Mutant], sample: int, seed: int) -> list[Mutant]:
    """So many of them, chosen by the seed; 0: all."""
    return random.Random(seed).sample(found, sample) if 0 < sample < len(found) else found


def modules() -> list[str]:
    return sorted(
        ".".join(p.relative_to(CORE).with_suffix("").parts) for p in CORE.rglob("*.py") if p.stem != "__init__"
    )


def source_of(name: str) -> str:
    return (CORE / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")


class Results:
    """What is known, by mutant, kept in a JSON lines file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[tuple[str, str], dict[str, Any]] = {}  # (key, digest) -> newest line
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._take(json.loads(line))

    @property
    def memory(self) -> Path | None:
        """Beside the results: what the tests do without a mutant."""
        return self._path.with_suffix(".tests.json") if self._path is not None else None

    def _take(self, line: dict[str, Any]) -> None:
        self._known[line["key"], line["digest"]] = line

    def of(self, mutant: Mutant) -> dict[str, Any] | None:
        return self._known.get((mutant.key, mutant.digest))

    def add(self, result: Result, stage: str) -> None:
        text = json.dumps({**result.as_json(), "stage": stage})
        self._take(json.loads(text))
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as f:
                f.write(text + "\n")


def run_stage(todo: list[Mutant], tests: list[str], stage: str, jobs: int, results: Results) -> list[str]:
    """Returns the tests that failed without a mutant."""
    import hypothesis
    import pytest

    hypothesis.settings.register_profile(  # the same examples for each mutant, and no time for making them small
        "mutation", derandomize=True, database=None, deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )  # fmt: skip
    hypothesis.settings.load_profile("mutation")
    began = time.monotonic()
    ends: Counter[str] = Counter()

    def record(result: Result) -> None:
        results.add(result, stage)
        ends[result.end] += 1
        if sum(ends.values()) % 50 == 0:
            print(
                f"{stage}: {sum(ends.values())} of {len(todo)}: {dict(ends)}, {time.monotonic() - began:.0f} s",
                flush=True,
            )

    lab = Lab(todo, CORE, jobs, record, results.memory)
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:warnings", "-o", "addopts="]
    code = pytest.main([*options, "-m", "not slow", "-k", _NOT, *tests], plugins=[lab])
    if code not in (0, 5):
        raise SystemExit(f"pytest could not collect {tests}: exit code {code}.")
    return lab.failing


def accepted() -> dict[str, str]:
    """Survivors we know, with the reason: lines `module.function | line | change -- reason`."""
    known: dict[str, str] = {}
    for line in SURVIVORS.read_text(encoding="utf-8").splitlines() if SURVIVORS.exists() else []:
        if line.strip() and not line.startswith("#"):
            key, _, reason = line.rpartition(" -- ")
            known[key.strip()] = reason.strip()
    return known


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="of core, by dotted name, as in lighthouse.loss (default: all)")
    parser.add_argument("--stage", choices=["core", "sim", "both"], default="both", help="whose tests")
    parser.add_argument("--sample", type=int, default=0, help="this many, chosen by the seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rules", action="store_true", help="mutants that forget a part of a rule, not those that slip"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tests", nargs="+", help="these in the place of all tests of core")
    parser.add_argument("--results", type=Path, help="JSON lines; a later run goes on from there")
    parser.add_argument("--again", action="store_true", help="also those that have survived and are not accepted")
    parser.add_argument("--table", action="store_true", help="run nothing, print what is known")
    args = parser.parse_args(argv)
    wanted = chosen(args.modules, args.sample, args.seed, args.rules)
    results = Results(args.results)
    began = time.monotonic()
    for stage, tests in STAGES.items():
        if args.table or args.stage not in (stage, "both"):
            continue
        known = accepted()
        todo = [m for m in wanted if _open(results.of(m), stage, args.again and m.key not in known)]
        if todo:
            for test in run_stage(todo, args.tests or tests, stage, args.jobs, results):
                print(f"left out, because it fails without a mutant: {test}")
    code = report(wanted, results, whole=not args.sample, rules=args.rules)
    print(f"in {time.monotonic() - began:.0f} s")
    return code


def _open(known: dict[str, Any] | None, stage: str, again: bool) -> bool:
    """Whether the mutant has to meet these tests."""
    if known is None:
        return True
    return known["end"] == "survived" and (again or (known["stage"] == "core" and stage == "sim"))


def report(wanted: list[Mutant], results: Results, *, whole: bool, rules: bool) -> int:
    """What survived, and the table per module. Exit code 1 if a survivor is not accepted, or a mutant has not run."""
    known, new = {k: reason for k, reason in accepted().items() if (f"| {RULE}" in k) is rules}, 0
    rows: dict[str, Counter[str]] = {}
    for m in wanted:
        row = rows.setdefault(m.module, Counter())
        line = results.of(m)
        end = line["end"] if line else "not run"
        row["all"] += 1
        row[end] += 1
        if end == "survived" and m.key in known:
            row["accepted"] += 1
        elif end == "survived":
            new += 1
            print(f"survived: core/{m.module}.py:{m.lineno} ({line['tests'] if line else 0} tests)\n    {m.key}")
    total: Counter[str] = sum(rows.values(), Counter())
    columns = ("all", "killed", "timeout", "survived", "accepted", "not run")
    print(f"\n| module | {' | '.join('mutants' if c == 'all' else c for c in columns)} | noticed |")
    print("|---" * (len(columns) + 2) + "|")
    for name, row in [*sorted(rows.items()), ("all", total)]:
        share = 100.0 * (row["killed"] + row["timeout"]) / max(1, row["all"] - row["not run"])
        print(f"| {name} | {' | '.join(str(row[c]) for c in columns)} | {share:.1f} % |")
    for key in sorted(k for k in known.keys() - {m.key for m in wanted} if k.split(".")[0] in rows and whole):
        print(f"in survivors.txt, but there is no such mutant any more: {key}")
    left_out = sum(skipped(source_of(name)) for name in rows)
    print(
        f"\n{left_out} more would only change sentences for people and are left out; {new} survivors without a reason"
    )
    return 1 if new or total["not run"] else 0


if __name__ == "__main__":
    sys.exit(main())
