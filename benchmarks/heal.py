"""1 GB of state from one process to another: HTTPTransport of both libraries against raw TCP with two streams.

*Warm* heals repeat between the same two processes. *Cold* ones run between new processes each time, like those of a
restarted group, with the transport that a Manager makes. On one host ours then copies through shared memory, so that
cold heals are measured over TCP, too, as between hosts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, Measured
from benchmarks.hosts import HERE, Host
from benchmarks.libraries import ROOT, Library
from benchmarks.processes import Worker
from benchmarks.stats import Goal

TRANSFER = str(ROOT / "benchmarks" / "transfer.py")
STREAMS = 2
SMALL_TENSORS = 20_000
AT_HAND = """
import mmap, sys
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, size, mmap.PAGESIZE):
    memory[page] = 1
"""


class End(Worker):
    """A process of transfer.py: the source or the receiver of a heal."""

    def __init__(
        self, library: Library, role: str, megabytes: int, folder: Path, host: Host = HERE, tensors: int = 64
    ) -> None:
        command = [*host.enter, library.python, TRANSFER, "--library", library.module, "--role", role]
        command += ["--megabytes", str(megabytes), "--tensors", str(tensors), "--host", host.address]
        super().__init__(command, library.environment("0"), folder / f"{library.key}-{role}.log", folder)

    def call(self, *command: Any) -> Any:
        """Send a command, and return its answer. Raise `GaveUp` if there is none."""
        self.ask(*command)
        return self.answer()


@contextmanager
def ends(library: Library, megabytes: int, tensors: int = 64) -> Iterator[tuple[End, End]]:
    """Start a source and a receiver, and kill them at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bench-heal-"))
    started: list[End] = []
    try:
        for role in ("source", "receiver"):
            started.append(End(library, role, megabytes, folder, tensors=tensors))
        yield started[0], started[1]
    finally:
        for end in started:
            end.kill()
        shutil.rmtree(folder, ignore_errors=True)


def free_memory_is_at_hand(megabytes: int) -> None:
    """Allocate and free as much memory, so that both libraries find it at hand.

    A virtual machine returns memory to its host that has been free for seconds, and getting it back takes ten times as
    long. Without this, the library whose run follows another one would be faster.
    """
    subprocess.run([sys.executable, "-c", AT_HAND, str(megabytes)], check=True, timeout=120.0)


def run_heal(bench: Bench) -> list[Measured]:
    megabytes = bench.settings.get("megabytes") or (64 if bench.quick else 1024)
    return [*_warm(bench, megabytes), *_small(bench), *_cold(bench, megabytes)]


def _rate(bench: Bench, key: str, what: str, limit_is: str, goal: Goal) -> Measured:
    row = Measured(key, what, "GB/s", goal=goal, limit_is=limit_is, higher_is_better=True)
    row.why_no_peer = bench.why_no_peer
    return row


def _share(bench: Bench, key: str, what: str, goal: Goal | None = None) -> Measured:
    row = Measured(key, what, "x state", goal=goal)
    row.why_no_peer = bench.why_no_peer
    return row


def _warm(bench: Bench, megabytes: int) -> list[Measured]:
    """Measure heals that repeat between the same two processes of each library."""
    size = (megabytes << 20) / 1e9
    name = f"heal, {megabytes} MiB, one source, {STREAMS} streams"
    goal = Goal(0.8, of="ours/limit", at_most=False)
    rate = _rate(bench, "heal.digest", f"{name}, with digest", f"raw TCP, {STREAMS} streams", goal)
    memory = _share(bench, "heal.memory", "receiver's extra memory during a heal", Goal(0.05))
    with ExitStack() as stack:
        both = [(library, *stack.enter_context(ends(library, megabytes))) for library in bench.libraries]
        metadata = {library.key: source.call("metadata") for library, source, _ in both}
        port = next((source.call("raw", megabytes) for library, source, _ in both if library.is_ours), None)
        step = 0
        for i in range(-1, bench.pairs):  # the first only warms up
            for library, source, receiver in both if i % 2 == 0 else both[::-1]:
                if library.is_ours:
                    raw = receiver.call("raw", port, STREAMS)
                step += 1
                source.call("freeze", step)  # a new step, so that no digest of an earlier heal is reused
                seconds, extra = receiver.call("fetch", metadata[library.key], step, "network", True)
                if i < 0:
                    continue
                (rate.ours if library.is_ours else rate.peer).append(size / seconds)
                (memory.ours if library.is_ours else memory.peer).append(extra)
                if library.is_ours:
                    rate.limit.append(size / raw)
    rate.note = "the peer has no digest"
    return [rate, memory]


def _small(bench: Bench) -> list[Measured]:
    """Measure heals of many small tensors, in which the work per tensor at both ends dominates."""
    tensors = 2_000 if bench.quick else SMALL_TENSORS
    goal = Goal(5.0, of="peer/ours", at_most=False)
    rows = {
        how: Measured(
            f"heal.small.{how}", f"heal of {tensors:,} tensors of 1 KiB, offered and fetched, {words}", "s", goal=goal
        )
        for how, words in (("network", "as between hosts (TCP), into targets"), ("defaults", "one host, into targets"))
    }
    rows["fresh"] = Measured(
        "heal.small.fresh", f"{rows['network'].what.removesuffix(', into targets')}, no targets", "s", goal=goal
    )
    stop = Measured("heal.small.stop", f"of which the source's training stands still, {tensors:,} tensors", "s")
    with ExitStack() as stack:
        both = [(library, *stack.enter_context(ends(library, tensors >> 10, tensors))) for library in bench.libraries]
        metadata = {library.key: source.call("metadata") for library, source, _ in both}
        step = 0
        for i in range(-1, bench.pairs):  # the first only warms up
            for library, source, receiver in both if i % 2 == 0 else both[::-1]:
                for how, row in rows.items() if library.is_ours else [("network", rows["network"])]:
                    step += 1
                    stopped = source.call("freeze", step)
                    way = "network" if how == "fresh" else how
                    seconds, _ = receiver.call("fetch", metadata[library.key], step, way, how != "fresh")
                    if i >= 0:
                        (row.ours if library.is_ours else row.peer).append(stopped + seconds)
                        if how == "network":
                            (stop.ours if library.is_ours else stop.peer).append(stopped)
    for row in rows.values():
        row.peer, row.note = (
            list(rows["network"].peer),
            "the peer's transport has one way, without targets: its one figure",
        )
    for row in (*rows.values(), stop):
        row.why_no_peer = bench.why_no_peer
    return [*rows.values(), stop]


def _cold(bench: Bench, megabytes: int) -> list[Measured]:
    """Measure heals between new processes. The peer has one way, with which all of ours are compared."""
    size = (megabytes << 20) / 1e9
    rates = _cold_rates(bench, megabytes)
    fresh = rates["defaults", False]
    used = {
        how: Measured(f"{row.key}.cpu", f"processor time of both ends: {row.what}", "s", why_no_peer=bench.why_no_peer)
        for (how, into), row in rates.items()
        if not into
    }
    source_memory = _share(bench, "heal.cold.source", "source's extra memory for a heal")
    lent_memory = _share(bench, "heal.cold.source.held", "the same where its supervisor holds copies", Goal(0.05))
    lent_memory.why_no_peer = "it holds no copies"
    receiver_memory = _share(bench, "heal.cold.receiver", "receiver's extra memory, no targets")

    def once(library: Library, how: str, into: bool) -> None:
        row = rates[how, into]
        with ends(library, megabytes) as (source, receiver):
            metadata = source.call("metadata")
            source.call("freeze", 1)
            free_memory_is_at_hand(megabytes)
            before = source.call("used") + receiver.call("used")
            seconds, extra = receiver.call("fetch", metadata, 1, how, into)
            after = source.call("used") + receiver.call("used")
            (row.ours if library.is_ours else row.peer).append(size / seconds)
            if not into:
                (used[how].ours if library.is_ours else used[how].peer).append(after - before)
            if row is fresh:
                (receiver_memory.ours if library.is_ours else receiver_memory.peer).append(extra)
                (source_memory.ours if library.is_ours else source_memory.peer).append(source.call("extra"))

    def lent(library: Library) -> None:
        with ends(library, megabytes) as (source, receiver):
            source.call("hold")
            source.call("freeze", 1)
            receiver.call("fetch", source.call("metadata"), 1, "network", True)
            lent_memory.ours.append(source.call("extra"))

    def limits(library: Library) -> None:
        with ends(library, megabytes) as (source, receiver):
            port = source.call("raw", megabytes)
            free_memory_is_at_hand(megabytes)
            for into in (False, True):  # the first copy goes into new memory, the second into the same
                rate = size / receiver.call("raw", port, STREAMS)
                rates["defaults", into].limit.append(rate)
                rates["network", into].limit.append(rate)

    for i in range(bench.pairs):
        turns: list[tuple[Any, ...]] = []
        for library in bench.libraries:
            turns += [(once, library, *way) for way in (rates if library.is_ours else [("defaults", False)])]
            turns += [(limits, library), (lent, library)] if library.is_ours else []
        for turn, *arguments in turns if i % 2 == 0 else turns[::-1]:
            turn(*arguments)
    for row in rates.values():
        if row is not fresh:
            row.peer = list(fresh.peer)
            row.note = "the peer's transport has one way, without targets and digests: its one figure"
    used["network"].peer = list(used["defaults"].peer)
    return [*rates.values(), *used.values(), source_memory, lent_memory, receiver_memory]


def _cold_rates(bench: Bench, megabytes: int) -> dict[tuple[str, bool], Measured]:
    """Return a row for each transport of the receiver, with and without targets to receive into."""
    rows: dict[tuple[str, bool], Measured] = {}
    for how, key, where in (
        ("defaults", "heal.cold", "one host (shared memory)"),
        ("network", "heal.cold.network", "as between hosts (TCP)"),
    ):
        for into in (False, True):
            end, memory = ("into", "used") if into else ("fresh", "new")
            what = (
                f"heal, {megabytes} MiB, new processes, defaults, {where}, {'into targets' if into else 'no targets'}"
            )
            limit = f"raw TCP, {STREAMS} streams, into {memory} memory"
            goal = Goal(1.3, of="ours/peer", at_most=False)
            rows[how, into] = _rate(bench, f"{key}.{end}", what, limit, goal)
    return rows
