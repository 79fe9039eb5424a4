"""Run the core's tests against mutants: `python -m tests.mutation.run --sample 200 --jobs 2`.

Each mutant runs in a forked child that has the tests' libraries loaded already, and stops at the first failing test.
What survives must stand in survivors.txt with a reason, or it is a rule that nothing checks: exit code 1.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).parent.parent.parent
CORE = ROOT / "torchft_x" / "core"
SURVIVORS = Path(__file__).with_name("survivors.txt")
_LIMIT = 60.0  # seconds of one mutant; a test run that hangs has noticed it
# Where a module's rules are tested, besides in the file of its name.
_LIGHTHOUSE = ("test_lighthouse.py", "test_wrong_variants.py")
_GROUP = ("test_group.py", "test_pledge.py", "test_grants.py")
_BESIDES = {
    **dict.fromkeys(("alarm", "liveness", "tenure", "grants", "lighthouse"), _LIGHTHOUSE),
    **dict.fromkeys(("hold", "join", "pledge", "ballot", "group"), _GROUP),
    "types": ("test_settle.py", "test_recovery.py"),
}
_LATE = ("test_random_walk.py", "test_golden.py")  # slower, and rarely the only ones to notice


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    killed: bool
    seconds: float


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves one module from changed source."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._name else None

    def exec_module(self, module: Any) -> None:
        exec(compile(self._source, f"<mutant of {self._name}>", "exec"), module.__dict__)


def all_mutants(modules: Iterable[str]) -> list[Mutant]:
    """Of these modules of core, by file name without .py."""
    return [m for name in modules for m in mutants(name, (CORE / f"{name}.py").read_text(encoding="utf-8"))]


def tests_for(module: str, extra: list[str]) -> list[list[str]]:
    """Rounds of test files, the likeliest to notice first. A mutant that survives a round meets the next."""
    files = sorted((ROOT / "tests" / "core").glob("test_*.py"))
    own = [p for p in files if p.name in (f"test_{module}.py", *_BESIDES.get(module, ()))]
    late = [p for p in files if p.name in _LATE and p not in own]
    rest = [p for p in files if p not in own and p not in late]
    return [[str(p) for p in r] for r in (own, rest, [*late, *map(Path, extra)]) if r]


def _child(mutant: Mutant, extra: list[str]) -> int:
    """In the forked child: the exit code of the tests."""
    import pytest

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.meta_path.insert(0, _Changed(f"torchft_x.core.{mutant.module}", mutant.source))
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:timeout", "-o", "addopts=", "-m", "not slow"]
    for files in tests_for(mutant.module, extra):
        code = int(pytest.main([*options, *files]))
        if code != 0:
            return code
    return 0


class Runner:
    """`jobs` forked children at a time."""

    def __init__(self, jobs: int, extra: list[str]) -> None:
        self._jobs = jobs
        self._extra = extra  # more test files
        self._running: dict[int, tuple[Mutant, float]] = {}  # pid -> what it runs, since when

    def run(self, chosen: list[Mutant]) -> list[Result]:
        waiting = list(chosen)
        results: list[Result] = []
        while waiting or self._running:
            while waiting and len(self._running) < self._jobs:
                self._start(waiting.pop(0))
            results += self._collect()
        return results

    def _start(self, mutant: Mutant) -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = _child(mutant, self._extra)
            finally:
                os._exit(code)
        self._running[pid] = (mutant, time.monotonic())

    def _collect(self) -> list[Result]:
        done: list[Result] = []
        for pid, (mutant, since) in list(self._running.items()):
            seconds = time.monotonic() - since
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == 0 and seconds > _LIMIT:
                os.kill(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0)
            if ended:
                del self._running[pid]
                done.append(Result(mutant, os.waitstatus_to_exitcode(status) != 0, seconds))
        if not done:
            time.sleep(0.005)
        return done


def accepted() -> dict[str, str]:
    """Survivors we know, with the reason: lines `module | line | change -- reason`."""
    known: dict[str, str] = {}
    for line in SURVIVORS.read_text(encoding="utf-8").splitlines() if SURVIVORS.exists() else []:
        if line.strip() and not line.startswith("#"):
            key, _, reason = line.partition(" -- ")
            known[key.strip()] = reason.strip()
    return known


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="of core, without .py (default: all)")
    parser.add_argument("--sample", type=int, default=0, help="this many, chosen by the seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tests", nargs="*", default=[], help="more test files")
    parser.add_argument("--json", type=Path, help="write the result there")
    args = parser.parse_args(argv)
    names = args.modules or sorted(p.stem for p in CORE.glob("*.py") if p.stem != "__init__")
    chosen = all_mutants(names)
    if args.sample and args.sample < len(chosen):
        chosen = random.Random(args.seed).sample(chosen, args.sample)
    _load_the_tests_libraries()
    began = time.monotonic()
    results = Runner(args.jobs, args.tests).run(chosen)
    return report(results, time.monotonic() - began, args.json)


def _load_the_tests_libraries() -> None:
    """So that every child has them at once. Nothing of ours: that is what changes."""
    import hypothesis.strategies
    import pytest

    assert pytest
    assert hypothesis.strategies
    assert not any(name.startswith("torchft_x.core") for name in sys.modules)


def report(results: list[Result], seconds: float, path: Path | None) -> int:
    """Print what survived. Exit code 1 if one is not accepted."""
    known = accepted()
    alive = [r.mutant for r in results if not r.killed]
    new = [m for m in alive if m.key not in known]
    for m in sorted(new, key=lambda m: (m.module, m.lineno)):
        print(f"survived: core/{m.module}.py:{m.lineno}: {m.what}\n    {m.line}")
    killed = len(results) - len(alive)
    share = 100.0 * killed / max(1, len(results))
    print(
        f"{killed} of {len(results)} mutants killed ({share:.1f} %), {len(alive) - len(new)} accepted, {len(new)} new"
    )
    print(f"in {seconds:.0f} s")
    if path is not None:
        by_module: dict[str, list[int]] = {}
        for r in results:
            row = by_module.setdefault(r.mutant.module, [0, 0])
            row[0] += r.killed
            row[1] += 1
        new_keys = [m.key for m in new]
        path.write_text(json.dumps({"killed": killed, "all": len(results), "modules": by_module, "new": new_keys}))
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
