"""Collected tests in one process, and a fork of it for each mutant: no start of pytest, no import, no collection.

First every test runs once, traced: which lines of core it executes and what it takes. A mutant then meets only the
tests that run its lines, those first that have killed its neighbours, and the first failure ends it. Each test has a
limit of CPU time of its own, made of what it took; a mutant that runs into it counts as timed out.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.mutation.mutants import Mutant
from tests.mutation.patched import install

_MEMORY = 3 << 30  # bytes of address space beyond what the parent has: an endless list must not take the machine down
_SLACK = 0.5  # seconds of CPU a test may take in any case
_FACTOR = 5  # x what the test took when traced, which is slow already
_WALL = 300  # seconds; only for what waits without using the CPU, so what the tests use comes on top, times _FACTOR


@dataclass(frozen=True, slots=True)
class Course:
    """What a test did when nothing was changed."""

    seconds: float  # of CPU, traced
    lines: frozenset[tuple[str, int]]  # (module of core, line)


@dataclass(frozen=True, slots=True)
class Result:
    mutant: Mutant
    end: str  # "killed", "timeout" or "survived"
    by: str  # the test that noticed
    tests: int  # that run the mutant's lines
    seconds: float

    def as_json(self) -> dict[str, object]:
        m = self.mutant
        rest = {"end": self.end, "by": self.by, "tests": self.tests, "seconds": round(self.seconds, 3)}
        return {"key": m.key, "digest": m.digest, "module": m.module, "lineno": m.lineno, **rest}


class Lab:
    """A pytest plugin that runs mutants in the place of tests."""

    def __init__(
        self, chosen: list[Mutant], core: Path, jobs: int, record: Callable[[Result], None], memory: Path | None = None
    ) -> None:
        self._chosen = chosen
        self._core = core  # folder of the modules
        self._sources = {
            name: Path(p).read_text(encoding="utf-8") for p, name in _modules(core).items()
        }  # may be edited meanwhile
        self._jobs = jobs
        self._record = record  # told of each result at once
        self._memory = memory  # file with what tests did in earlier runs
        self._items: list[Any] = []  # of pytest
        self._courses: dict[str, Course] = {}  # by test; those that fail without a mutant are not here
        self._kills: Counter[tuple[str, str]] = Counter()  # (function, or module, test) -> mutants killed
        self._running: dict[int, tuple[Mutant, int, float, int]] = {}  # pid -> mutant, tests, since when, its pipe
        self.failing: list[str] = []  # tests that fail without a mutant

    def pytest_runtestloop(self, session: Any) -> bool:
        self._items = list(session.items)
        gc.collect()
        gc.freeze()
        self._survey()
        for mutant in self._chosen:
            items = self._tests(mutant)
            if not items:
                self._record(Result(mutant, "survived", "", 0, 0.0))
                continue
            if len(self._running) >= self._jobs:
                self._collect()
            self._start(mutant, items)
        while self._running:
            self._collect()
        return True

    def _survey(self) -> None:
        """What each test does when nothing is changed; only those are run whose file was edited, or any module of core."""
        known: dict[str, list[Any]] = {}
        if self._memory is not None and self._memory.exists():
            known = json.loads(self._memory.read_text(encoding="utf-8"))
        core = "".join(self._sources.values())
        digests = {i.nodeid: _digest(core + i.path.read_text(encoding="utf-8")) for i in self._items}
        new = [i for i in self._items if known.get(i.nodeid, [""])[0] != digests[i.nodeid]]
        for test, *course in self._run_traced(new):
            known[test] = [digests[test], *course]
        if self._memory is not None and new:
            self._memory.write_text(json.dumps(known), encoding="utf-8")
        for item in self._items:
            _, ok, seconds, places = known[item.nodeid]
            if ok:
                self._courses[item.nodeid] = Course(seconds, frozenset((m, n) for m, n in places))
            else:
                self.failing.append(item.nodeid)

    def _run_traced(self, items: list[Any]) -> list[list[Any]]:
        """In a child, so that nothing of it stays in the parent. (test, whether it passed, seconds, lines of core)"""
        reader, writer = os.pipe()
        if not (pid := _fork()):
            with os.fdopen(writer, "w") as out:
                for line in _traced(items, self._core):
                    out.write(json.dumps(line) + "\n")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            found = [json.loads(line) for line in lines]
        os.waitpid(pid, 0)
        return found

    def _tests(self, mutant: Mutant) -> list[Any]:
        """Those that run the mutant's lines, the likeliest first."""
        lines = {(mutant.module, n) for n in range(mutant.first, mutant.last + 1)}
        place, module = f"{mutant.module}.{mutant.function}", mutant.module
        ranked = []
        for item in self._items:
            course = self._courses.get(item.nodeid)
            if course is not None and not lines.isdisjoint(course.lines):
                likely = 20 * self._kills[place, item.nodeid] + self._kills[module, item.nodeid]
                ranked.append((course.seconds / (0.2 + likely), item.nodeid, item))
        return [item for *_, item in sorted(ranked, key=lambda r: r[:2])]

    def _start(self, mutant: Mutant, items: list[Any]) -> None:
        reader, writer = os.pipe()
        pid = _fork()
        if pid:
            os.close(writer)
            self._running[pid] = (mutant, len(items), time.monotonic(), reader)
            return
        code = 3
        try:
            space = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (space + _MEMORY, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(_WALL + round(_FACTOR * sum(self._courses[i.nodeid].seconds for i in items)))
            install(mutant, self._sources[mutant.module])
            code = self._meet(items, writer)
        finally:
            os._exit(code)

    def _meet(self, items: list[Any], writer: int) -> int:
        """In the child: 1 if a test notices, whose name goes into the pipe before it begins."""
        for item, following in _pairs(items):
            os.write(writer, (item.nodeid + "\n").encode())
            signal.setitimer(signal.ITIMER_PROF, _SLACK + _FACTOR * self._courses[item.nodeid].seconds)
            if not _passes(item, following):
                return 1
        return 0

    def _collect(self) -> None:
        """Wait for one child."""
        pid, status = os.wait()
        mutant, tests, since, reader = self._running.pop(pid)
        with os.fdopen(reader) as said:
            by = (said.read().split("\n")[-2:-1] or [""])[0]
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, 1, -signal.SIGPROF, -signal.SIGALRM):
            raise RuntimeError(f"The child of {mutant.key} ended with {code} in {by}.")
        end = {0: "survived", 1: "killed"}.get(code, "timeout")
        if code != 0:
            self._kills[f"{mutant.module}.{mutant.function}", by] += 1
            self._kills[mutant.module, by] += 1
        self._record(Result(mutant, end, by if code else "", tests, time.monotonic() - since))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
    return pid


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(items, [*items[1:], None], strict=True)


def _passes(item: Any, following: Any) -> bool:
    from _pytest.runner import runtestprotocol

    reports = runtestprotocol(item, log=False, nextitem=following)
    return not any(r.failed for r in reports)


def _modules(core: Path) -> dict[str, str]:
    """Path -> dotted name below core."""
    return {str(p): ".".join(p.relative_to(core).with_suffix("").parts) for p in core.rglob("*.py")}


def _traced(items: Iterable[Any], core: Path) -> Iterator[tuple[str, bool, float, list[tuple[str, int]]]]:
    """Run each test once."""
    modules = _modules(core)
    seen: set[tuple[str, int]] = set()

    def on_line(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            seen.add((modules[frame.f_code.co_filename], frame.f_lineno))
        return on_line

    def on_call(frame: FrameType, event: str, arg: object) -> Any:
        return on_line if frame.f_code.co_filename in modules else None

    for item, following in _pairs(list(items)):
        seen.clear()
        began = time.process_time()
        sys.settrace(on_call)
        ok = _passes(item, following)
        sys.settrace(None)
        yield item.nodeid, ok, time.process_time() - began, sorted(seen)
