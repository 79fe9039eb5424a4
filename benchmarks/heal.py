"""1 GB of state from one process to another: HTTPTransport of both libraries against raw TCP with two streams."""

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
    size = (megabytes << 20) / 1e9
    name = f"heal, {megabytes} MiB, one source, {STREAMS} streams"
    plain, digest = (
        Measured(
            f"heal.{key}",
            f"{name}, {words}",
            "GB/s",
            goal=Goal(share, of="ours/limit", at_most=False),
            limit_is=f"raw TCP, {STREAMS} streams",
            why_no_peer=bench.why_no_peer,
            higher_is_better=True,
        )
        for key, words, share in (("plain", "no digest", 0.9), ("digest", "with digest", 0.8))
    )
    memory = Measured("heal.memory", "receiver's extra memory during a heal", "x state", goal=Goal(0.05))
    memory.why_no_peer = bench.why_no_peer
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
                    seconds, extra = receiver.tell("fetch", metadata[library.key], step, row is digest)
                    if i < 0:
                        continue
                    (row.ours if library.is_ours else row.peer).append(size / seconds)
                    if library.is_ours:
                        row.limit.append(size / raw)
                    if row is plain:
                        (memory.ours if library.is_ours else memory.peer).append(extra)
    digest.peer, digest.note = list(plain.peer), "the peer has no digest: its plain figure"
    return [plain, digest, memory]
