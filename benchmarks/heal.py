"""1 GB of state from one process to another: HTTPTransport of both libraries against raw TCP with two streams.

Again and again between the same two processes, and *cold*: between processes that are new each time, as a group's are
that comes back, with what a Manager makes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, Measured
from benchmarks.libraries import ROOT, Library
from benchmarks.processes import Worker
from benchmarks.stats import Goal

TRANSFER = str(ROOT / "benchmarks" / "transfer.py")
STREAMS = 2


class End(Worker):
    """A transfer.py."""

    def __init__(self, library: Library, role: str, megabytes: int, folder: Path) -> None:
        command = [library.python, TRANSFER, "--library", library.module, "--role", role]
        command += ["--megabytes", str(megabytes)]
        super().__init__(command, library.environment("0"), folder / f"{library.key}-{role}.log", folder)

    def tell(self, *command: Any) -> Any:
        self.ask(*command)
        return self.answer()


@contextmanager
def ends(library: Library, megabytes: int) -> Iterator[tuple[End, End]]:
    """Source and receiver."""
    folder = Path(tempfile.mkdtemp(prefix="bench-heal-"))
    started: list[End] = []
    try:
        for role in ("source", "receiver"):
            started.append(End(library, role, megabytes, folder))
        yield started[0], started[1]
    finally:
        for end in started:
            end.kill()
        shutil.rmtree(folder, ignore_errors=True)


def run_heal(bench: Bench) -> list[Measured]:
    megabytes = bench.settings.get("megabytes") or (64 if bench.quick else 1024)
    return [*_again(bench, megabytes), *_cold(bench, megabytes)]


def _rate(bench: Bench, key: str, what: str, limit_is: str, goal: Goal) -> Measured:
    row = Measured(key, what, "GB/s", goal=goal, limit_is=limit_is, higher_is_better=True)
    row.why_no_peer = bench.why_no_peer
    return row


def _share(bench: Bench, key: str, what: str, goal: Goal | None = None) -> Measured:
    row = Measured(key, what, "x state", goal=goal)
    row.why_no_peer = bench.why_no_peer
    return row


def _again(bench: Bench, megabytes: int) -> list[Measured]:
    """Of both libraries the same two processes all the time."""
    size = (megabytes << 20) / 1e9
    name = f"heal, {megabytes} MiB, one source, {STREAMS} streams"
    plain, digest = (
        _rate(
            bench,
            f"heal.{key}",
            f"{name}, {words}",
            f"raw TCP, {STREAMS} streams",
            Goal(share, of="ours/limit", at_most=False),
        )
        for key, words, share in (("plain", "no digest", 0.9), ("digest", "with digest", 0.8))
    )
    memory = _share(bench, "heal.memory", "receiver's extra memory during a heal", Goal(0.05))
    with ExitStack() as stack:
        both = [(library, *stack.enter_context(ends(library, megabytes))) for library in bench.libraries]
        metadata = {library.key: source.tell("metadata") for library, source, _ in both}
        port = next((source.tell("raw", megabytes) for library, source, _ in both if library.is_ours), None)
        step = 0
        for i in range(-1, bench.pairs):  # the first only warms up
            rows = [plain, digest] if i % 2 == 0 else [digest, plain]
            for library, source, receiver in both if i % 2 == 0 else both[::-1]:
                if library.is_ours:
                    raw = receiver.tell("raw", port, STREAMS)
                for row in rows if library.is_ours else [plain]:
                    step += 1
                    source.tell("freeze", step)  # anew: a heal never finds digests computed by an earlier one
                    seconds, extra = receiver.tell("fetch", metadata[library.key], step, row is digest, True)
                    if i < 0:
                        continue
                    (row.ours if library.is_ours else row.peer).append(size / seconds)
                    if library.is_ours:
                        row.limit.append(size / raw)
                    if row is plain:
                        (memory.ours if library.is_ours else memory.peer).append(extra)
    digest.peer, digest.note = list(plain.peer), "the peer has no digest: its plain figure"
    return [plain, digest, memory]


def _cold(bench: Bench, megabytes: int) -> list[Measured]:
    """New processes each time. The peer has one way, and it is what both of ours are compared with."""
    size = (megabytes << 20) / 1e9
    name = f"heal, {megabytes} MiB, new processes, defaults"
    raw = f"raw TCP, {STREAMS} streams"
    faster = Goal(1.3, of="ours/peer", at_most=False)
    fresh = _rate(bench, "heal.cold.fresh", f"{name}, no targets", f"{raw}, into new memory", faster)
    into = _rate(bench, "heal.cold.into", f"{name}, into targets", f"{raw}, into used memory", faster)
    source_memory = _share(bench, "heal.cold.source", "source's extra memory for a heal")
    receiver_memory = _share(bench, "heal.cold.receiver", "receiver's extra memory, no targets")

    def once(library: Library, row: Measured) -> None:
        with ends(library, megabytes) as (source, receiver):
            metadata = source.tell("metadata")
            source.tell("freeze", 1)
            seconds, extra = receiver.tell("fetch", metadata, 1, True, row is into)
            (row.ours if library.is_ours else row.peer).append(size / seconds)
            if row is fresh:
                (receiver_memory.ours if library.is_ours else receiver_memory.peer).append(extra)
                (source_memory.ours if library.is_ours else source_memory.peer).append(source.tell("extra"))

    def limits(library: Library) -> None:
        with ends(library, megabytes) as (source, receiver):
            port = source.tell("raw", megabytes)
            for row in (fresh, into):
                row.limit.append(size / receiver.tell("raw", port, STREAMS))

    for i in range(bench.pairs):
        turns: list[tuple[Any, ...]] = []
        for library in bench.libraries:
            turns += [(once, library, fresh), (once, library, into)] if library.is_ours else [(once, library, fresh)]
            turns += [(limits, library)] if library.is_ours else []
        for turn, *arguments in turns if i % 2 == 0 else turns[::-1]:
            turn(*arguments)
    into.peer, into.note = list(fresh.peer), "the peer's transport has no targets: its one figure"
    return [fresh, into, source_memory, receiver_memory]
