"""Quorum changes with up to a thousand simulated groups, against each library's lighthouse as a real process."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, Measured
from benchmarks.groups import Groups, OurGroups, PeerGroups, change
from benchmarks.libraries import Library
from benchmarks.lighthouse import Served
from benchmarks.processes import GaveUp
from benchmarks.stats import Goal
from benchmarks.through import Askers

import grpc  # isort: skip  (after ours)

SIZES = (2, 8, 64, 512, 1000)
OF_THE_GOAL = 512
LARGEST = 1000
WORKS = 5000.0  # ms: the heartbeat timeout, after which a lighthouse would take waiting groups for dead


THROUGH = 8
"""Largest number of groups that are also measured as processes of their own."""
PATIENT = ("--heartbeat_timeout_ms", "60000")
"""Options of the lighthouse. One process simulates all groups and may be slow, so that none may be suspected early."""
FAILURES = (GaveUp, RuntimeError, asyncio.TimeoutError, grpc.RpcError)


def run_fanout(bench: Bench) -> list[Measured]:
    rows = []
    for number in bench.settings.get("groups") or ((2,) if bench.quick else SIZES):
        folder = Path(tempfile.mkdtemp(prefix="bench-fanout-"))
        try:
            rows += asyncio.run(Size(bench, number).run(folder))
            if number <= THROUGH:
                rows += run_through(bench, number, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return rows


def run_through(bench: Bench, number: int, folder: Path) -> list[Measured]:
    """Measure quorum changes through real group servers, of both libraries in turn, each with its own lighthouse.

    A failure of one library is printed and ends its part; the other goes on.
    """
    name = f"quorum change through group servers, {number} groups: "
    settled = Measured(f"through.{number}", name + "last request -> last answer", "ms")
    burst = Measured(f"through.{number}.burst", name + "all ask at once -> last answer", "ms")
    up: list[tuple[Library, Askers]] = []
    with ExitStack() as stack:
        for row in (settled, burst):
            row.why_no_peer = bench.why_no_peer

        def failed(library: Library, e: GaveUp) -> None:
            bench.say(f"  {e}")
            settled.note = str(e)
            for row in (settled, burst):
                setattr(row, "why_not" if library.is_ours else "why_no_peer", "it failed, see the notes")

        for library in bench.libraries:
            try:
                lighthouse = Served(library, folder, *PATIENT)
                stack.callback(lighthouse.stop)
                askers = Askers(library, lighthouse.bind, number, folder)
                stack.callback(askers.close)
                up.append((library, askers))
            except GaveUp as e:
                failed(library, e)
        for i in range(-1, bench.pairs):  # the first pair only warms up
            for library, askers in up[:: 1 if i % 2 == 0 else -1]:
                try:
                    seconds = {at_once: askers.change(burst=at_once) for at_once in (False, True)}
                except GaveUp as e:
                    failed(library, e)
                    up.remove((library, askers))
                    continue
                for row in (settled, burst) if i >= 0 else ():
                    (row.ours if library.is_ours else row.peer).append(1e3 * seconds[row is burst])
    return [settled, burst]


class Size:
    """All rows of one number of groups."""

    def __init__(self, bench: Bench, number: int) -> None:
        self.bench = bench
        self.number = number
        name = f"quorum change, {number} groups: "
        goal = {OF_THE_GOAL: Goal(2.0, of="peer/ours", at_most=False), LARGEST: Goal(WORKS)}.get(number)
        self.settled = Measured(f"fanout.{number}", name + "last request -> last answer", "ms", goal=goal)
        self.burst = Measured(f"fanout.{number}.burst", name + "all ask at once -> last answer", "ms")
        self.memory = Measured(f"fanout.{number}.memory", f"lighthouse's memory with {number} groups", "MB")
        self.memory.goal = Goal(80.0) if number == OF_THE_GOAL else None
        self.rows = [self.settled, self.burst, self.memory]
        self._served: list[tuple[Library, Served, Groups]] = []  # libraries that have not failed

    async def run(self, folder: Path) -> list[Measured]:
        for row in self.rows:
            row.why_no_peer = self.bench.why_no_peer
        try:
            for library in self.bench.libraries:
                lighthouse = Served(library, folder, *PATIENT)
                groups: Groups = (OurGroups if library.is_ours else PeerGroups)(lighthouse.bind, self.number)
                self._served.append((library, lighthouse, groups))
            # Sessions open once all lighthouses are up, or the first library's groups would be silent for long.
            for library, _, groups in list(self._served):
                await self._guarded(library, groups.open())
            for i in range(-1, self.bench.pairs):  # the first pair only warms up
                for library, _, groups in self._served[:: 1 if i % 2 == 0 else -1]:
                    await self._guarded(library, self._pair(library, groups, counts=i >= 0))
            for library, lighthouse, _ in self._served:
                (self.memory.ours if library.is_ours else self.memory.peer).append(lighthouse.memory())
        finally:
            for library, _, _ in list(self._served):
                await self._drop(library)
        return self.rows

    async def _pair(self, library: Library, groups: Groups, *, counts: bool) -> None:
        for row in (self.settled, self.burst):
            for _, _, idle in self._served:  # idle groups of all libraries must stay alive while one is measured
                await idle.refresh()
            seconds = await change(groups, self.number, burst=row is self.burst)
            if counts:
                (row.ours if library.is_ours else row.peer).append(1e3 * seconds)

    async def _guarded(self, library: Library, doing: Coroutine[Any, Any, None]) -> None:
        """Await one library's work. A failure is printed and ends that library's part; the other goes on."""
        try:
            await doing
        except FAILURES as e:
            words = f"{self.number} groups of {library.module} failed: {e!r}"
            self.bench.say(f"  {words}")
            self.settled.note = words
            for row in self.rows:
                setattr(row, "why_not" if library.is_ours else "why_no_peer", "it failed, see the notes")
            await self._drop(library)

    async def _drop(self, library: Library) -> None:
        gone = [x for x in self._served if x[0] is library]
        self._served = [x for x in self._served if x[0] is not library]
        for _, lighthouse, groups in gone:
            await groups.close()
            lighthouse.stop()
