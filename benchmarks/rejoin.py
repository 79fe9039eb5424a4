"""Rejoining of a killed group: the time until all train together again, and the survivor's longest step meanwhile."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from benchmarks import LARGE, SMALL
from benchmarks.bench import Bench, Measured, Pairs, interleave
from benchmarks.job import Job
from benchmarks.libraries import Library
from benchmarks.processes import wait_for
from benchmarks.record import goes_on, longest_gap, thrown_away, together
from benchmarks.stats import Goal, ratios

BOUND = 120.0  # seconds for a restart


@dataclass(frozen=True)
class Rejoin:
    """Cost of one kill under a launcher."""

    seconds: float
    """Time from the kill until all groups had committed a step together again."""
    thrown: int
    """Number of batches that the survivor drew and never committed."""


def rejoin_once(library: Library) -> Rejoin:
    """Kill one of two groups under their library's launcher, which restarts it, and return the cost."""
    with Job(library, 2, launched=True) as job:
        job.wait_warm()
        job.wait_together(time.monotonic())
        survivor = job.attempt("0")
        t = job.kill("1")
        back = wait_for(lambda: (job.records.update(), together(job.attempts(), t))[1], BOUND, "all train together")
        time.sleep(0.5)
        job.records.update()
        return Rejoin(back - t, thrown_away(survivor, t, time.monotonic()))


def run_rejoin(bench: Bench) -> list[Measured]:
    pairs = interleave(bench, rejoin_once)
    name = "kill -9 under the launcher, 2 groups: "
    note = "; ".join(pairs.failures)
    rows = [
        (Measured("rejoin.2", name + "all commit together again", "s", goal=Goal(0.3), note=note), lambda x: x.seconds),
        (Measured("rejoin.2.thrown", name + "survivor's gradients thrown away", "batches"), lambda x: x.thrown),
    ]
    return [pairs.fill(row, read, bench) for row, read in rows]


@dataclass(frozen=True)
class Longest:
    """Steps of the survivor in one job, in seconds."""

    rejoin: float
    """Longest step while the group rejoins."""
    control: float
    """Longest step while a stand-in of the group costs the machine the same, without the protocol."""
    usual: float
    """Median step before the kill."""


@contextmanager
def raw_source() -> Iterator[str]:
    """Serve over TCP as many bytes as a client's first line names, and yield the address."""
    block = bytes(4 << 20)

    def answer(connection: socket.socket) -> None:
        with connection:
            left = int(connection.makefile("rb").readline())
            while left > 0:
                connection.sendall(block[: min(left, len(block))])
                left -= len(block)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5.0)


def longest_once(library: Library, size: str) -> Longest:
    """Kill a group, run a stand-in that costs the machine the same (control), and restart the group, in one job."""
    with raw_source() as source, Job(library, 2, trainer=("--model", size, "--pace", "0")) as job:
        job.wait_together(steps=10)
        survivor = job.attempt("0")
        times = [c.t for c in survivor.commits[-8:]]
        usual = median(b - a for a, b in itertools.pairwise(times))
        t = job.kill("1")
        alone = wait_for(lambda: (job.records.update(), goes_on(survivor, t, 2))[1], BOUND, "the survivor trains on")

        begin = max(alone, time.monotonic())
        job.start("1", "--stand-in", source)
        wait_for(lambda: (job.records.update(), job.attempt("1").ended)[1], BOUND, "the stand-in has copied")
        end = time.monotonic()
        wait_for(lambda: (job.records.update(), survivor.commits[-1].t > end)[1], BOUND, "a step after it")
        control = max(usual, longest_gap([c.t for c in survivor.commits], begin, end))

        begin = time.monotonic()
        job.start("1")
        wait_for(lambda: (job.records.update(), together(job.attempts(), begin))[1], BOUND, "all train together again")
        back = together(job.attempts(), begin)
        assert back is not None
        return Longest(longest_gap([c.t for c in survivor.commits], begin, back), control, usual)


def run_longest(bench: Bench) -> list[Measured]:
    size = SMALL if bench.quick else LARGE
    pairs: Pairs[Longest] = interleave(bench, lambda library: longest_once(library, size))
    what = "survivor's longest step while a group rejoins, 25 M parameters"
    row = Measured("longest", what, "s", goal=Goal(1.10, of="ours/limit"), limit_is="the same import and a raw copy")
    pairs.fill(row, lambda x: x.rejoin, bench)
    row.limit = pairs.values("ours", lambda x: x.control)
    theirs = ratios(row.peer, pairs.values("peer", lambda x: x.control))
    note = f"the peer's ratio to its own control: {median(theirs):.2f}" if theirs else ""
    row.note = "; ".join(x for x in [note, "small model only" if bench.quick else "", *pairs.failures] if x)
    ratio = Measured("longest.usual", f"{what}, of a usual one", "x", goal=Goal(1.2))
    pairs.fill(ratio, lambda x: x.rejoin / x.usual, bench)
    return [row, ratio]
