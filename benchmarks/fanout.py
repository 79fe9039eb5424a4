"""Quorum changes with up to a thousand simulated groups: each library's lighthouse as a real process."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from benchmarks.bench import Bench, Measured
from benchmarks.groups import Groups, OurGroups, PeerGroups, change
from benchmarks.libraries import Library
from benchmarks.lighthouse import Served
from benchmarks.processes import GaveUp
from benchmarks.stats import Goal

import grpc  # isort: skip  (after ours)

SIZES = (2, 8, 64, 512, 1000)
OF_THE_GOAL = 512
LARGEST = 1000
WORKS = 5000.0  # ms; more than the heartbeat timeout, and the groups would be taken for dead


def run_fanout(bench: Bench) -> list[Measured]:
    rows = []
    for number in bench.settings.get("groups") or ((2, 8) if bench.quick else SIZES):
        folder = Path(tempfile.mkdtemp(prefix="bench-fanout-"))
        try:
            rows += asyncio.run(_size(bench, number, folder))
        except (RuntimeError, asyncio.TimeoutError, grpc.RpcError) as e:
            raise GaveUp(f"{number} simulated groups: {e!r}") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return rows


async def _size(bench: Bench, number: int, folder: Path) -> list[Measured]:
    """All rows of one number of groups."""
    name = f"quorum change, {number} groups: "
    goal = {OF_THE_GOAL: Goal(2.0, of="peer/ours", at_most=False), LARGEST: Goal(WORKS)}.get(number)
    settled = Measured(f"fanout.{number}", name + "last request -> last answer", "ms", goal=goal)
    burst = Measured(f"fanout.{number}.burst", name + "all ask at once -> last answer", "ms")
    memory = Measured(f"fanout.{number}.memory", f"lighthouse's memory with {number} groups", "MB")
    memory.goal = Goal(80.0) if number >= OF_THE_GOAL else None
    rows = [settled, burst, memory]
    served: list[tuple[Library, Served, Groups]] = []
    try:
        for library in bench.libraries:
            lighthouse = Served(library, folder)
            groups: Groups = (OurGroups if library.is_ours else PeerGroups)(lighthouse.bind, number)
            served.append((library, lighthouse, groups))
        for _, _, groups in served:  # when all are up: a lighthouse takes its time, and groups must not be silent
            await groups.open()
        for i in range(-1, bench.pairs):  # the first pair only warms up
            for library, _, groups in served if i % 2 == 0 else served[::-1]:
                for row in (settled, burst):
                    seconds = await change(groups, number, burst=row is burst)
                    if i >= 0:
                        (row.ours if library.is_ours else row.peer).append(1e3 * seconds)
        for library, lighthouse, _ in served:
            (memory.ours if library.is_ours else memory.peer).append(lighthouse.memory())
    finally:
        for _, lighthouse, groups in served:
            await groups.close()
            lighthouse.stop()
    for row in rows:
        row.why_no_peer = bench.why_no_peer
    return rows
