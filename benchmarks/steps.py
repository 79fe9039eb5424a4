"""Steps without failures: empty ones, and those of DDP and HSDP against torch's own."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import LARGE, SMALL
from benchmarks.bench import TOLERATED, Bench, Measured
from benchmarks.hosts import HERE, Host, NoHosts, star
from benchmarks.libraries import WORKER, Library
from benchmarks.processes import Child, GaveUp, Worker, cpu_seconds, wait_for
from benchmarks.stats import Goal
from tests.util import free_port
from torchft_x import env

GROUPS = 2
TOGETHER = 120.0  # seconds until all groups must train together
# Options without a heal at the start: the peer's races with steps that have no collective, and takes 60 s.
_NO_HEAL: dict[str, Any] = {"init_sync": False}


class NotOffered(Exception):
    """Raised when this version of the library lacks an option."""


class Crew:
    """One lighthouse, and a worker.py per rank of each group. All workers get the same commands."""

    def __init__(
        self,
        library: Library,
        folder: Path,
        *arguments: str,
        options: dict[str, Any] | None = None,
        ranks: int = 1,
        hosts: Sequence[Host] = (HERE, HERE),
    ) -> None:
        self.library = library
        self.folder = folder
        port, home = free_port(), hosts[0]
        bind = f"{home.address}:{port}"
        command = [*home.enter, *library.lighthouse(bind)]
        self.lighthouse = Child(command, library.environment(), folder / "lighthouse.log", folder)
        self.workers: list[Worker] = []
        try:
            wait_for(lambda: home.listens(port), TOGETHER, "the lighthouse listens")
            for group, host in zip(range(GROUPS), hosts, strict=True):
                self._start(str(group), host, f"http://{bind}", options or {}, ranks, arguments)
            for worker in self.workers:
                unknown = worker.answer().get("unknown")
                if unknown:
                    raise NotOffered(f"this {library.module} has no {', '.join(unknown)}")
            wait_for(lambda: set(self.call("groups")) == {GROUPS}, TOGETHER, "the groups train together")
        except BaseException:
            self.close()
            raise

    def _start(
        self, group: str, host: Host, lighthouse: str, options: dict[str, Any], ranks: int, arguments: tuple[str, ...]
    ) -> None:
        library, more = self.library, {"TORCHFT_LIGHTHOUSE": lighthouse}
        if host is not HERE:
            options = {"hostname": host.address, **options}
            more |= {"GLOO_SOCKET_IFNAME": host.interface} | (
                {env.ADVERTISE_HOST: host.address} if library.is_ours else {}
            )
        command = [*host.enter, library.python, WORKER, "--library", library.module, "--options", json.dumps(options)]
        if ranks > 1:
            more |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": host.address, "MASTER_PORT": str(free_port())}
        for rank in range(ranks):
            environ = library.environment(group, **more, **({"RANK": str(rank)} if ranks > 1 else {}))
            log = self.folder / f"group-{group}-{rank}.log"
            self.workers.append(Worker([*command, *arguments], environ, log, self.folder))

    def call(self, *command: Any) -> list[Any]:
        """Send a command to each rank of each group, and return their answers."""
        for worker in self.workers:
            worker.ask(*command)
        return [worker.answer() for worker in self.workers]

    def cpu_seconds(self) -> float:
        """Return the processor time of all ranks so far, in seconds."""
        return sum(cpu_seconds(worker.pid) for worker in self.workers)

    def close(self) -> None:
        for child in (*self.workers, self.lighthouse):
            child.kill()


@contextmanager
def crew(
    library: Library,
    options: dict[str, Any] | None = None,
    size: str | None = None,
    ranks: int = 1,
    hosts: Sequence[Host] = (HERE, HERE),
) -> Iterator[Crew]:
    """Start a crew, trying again if it does not come up, and close it at the end. Raise `GaveUp` after the last try."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{library.key}-"))
    # The ranks of torch's own DDP rendezvous at this port.
    arguments = [] if size is None else ["--size", size, "--store-port", str(free_port())]
    made = None
    try:
        for left in reversed(range(TOLERATED)):
            try:
                made = Crew(library, folder, *arguments, options=options, ranks=ranks, hosts=hosts)
                break
            except GaveUp:
                if left == 0:
                    raise
        assert made is not None
        yield made
    finally:
        if made is not None:
            made.close()
        shutil.rmtree(folder, ignore_errors=True)


def crews_of(
    bench: Bench, stack: ExitStack, rows: list[Measured], *args: Any, libraries: Sequence[Library] | None = None
) -> list[Crew]:
    """Start a crew of each library, and return those that come up. The rows get the reason why another one doesn't."""
    out = []
    for row in rows:
        row.why_no_peer = row.why_no_peer or bench.why_no_peer
    for library in bench.libraries if libraries is None else libraries:
        try:
            out.append(stack.enter_context(crew(library, *args)))
        except GaveUp as e:
            bench.say(f"  {library.module} does not come up: {e}")
            for row in rows:
                row.note = f"{library.module} does not come up: {e}"
                name = "why_not" if library.is_ours else "why_no_peer"
                setattr(row, name, "it does not come up, see the notes")
    return out


def run_empty(bench: Bench) -> list[Measured]:
    """Measure blocks of empty steps in turn. All libraries and variants are up at the same time, and idle but one."""
    number = 50 if bench.quick else 300
    row = Measured("empty.2", "empty step, 2 groups", "ms", goal=Goal(0.25))
    bare = Measured("empty.2.no_vote", "empty step, 2 groups, commit_vote=False", "ms")
    with ExitStack() as stack:
        crews = [(x, row.ours if x.library.is_ours else row.peer) for x in crews_of(bench, stack, [row], _NO_HEAL)]
        if bench.ours is not None:
            try:
                crews.append((stack.enter_context(crew(bench.ours, _NO_HEAL | {"commit_vote": False})), bare.ours))
            except (NotOffered, GaveUp) as e:
                bare.why_not = str(e)
        for one, _ in crews:
            one.call("steps", 20)
        for i in range(bench.pairs):
            for one, samples in crews if i % 2 == 0 else crews[::-1]:
                samples.append(1e3 * median(x for group in one.call("steps", number) for x in group))
        dropped = sum(sum(one.call("dropped")) for one, _ in crews)
    sampling = f"a sample is the median of {number} steps in each group; {dropped} were dropped"
    row.note = "; ".join(x for x in (row.note, sampling) if x)
    rows = [row, bare]
    for ranks, goal in ((2, 0.4), (4, 1.0))[: 1 if bench.quick else 2]:
        rows += _empty_of(bench, ranks, Goal(goal), number)
    if bench.quick:
        return rows
    try:
        with star(1) as (first, others):
            rows += _empty_of(bench, 2, None, number, [first, *others])
    except NoHosts as e:
        rows.append(
            Measured(
                "empty.2x2.hosts",
                "empty step, 2 groups x 2 ranks, over two hosts",
                "ms",
                why_not=f"this machine has no two hosts: {e}",
            )
        )
    return rows


def _empty_of(
    bench: Bench, ranks: int, goal: Goal | None, number: int, hosts: Sequence[Host] = (HERE, HERE)
) -> list[Measured]:
    """Measure empty steps of two groups of several ranks: median, fastest tenth, and processor time."""
    apart = hosts[0] is not HERE
    shape = f"2 groups x {ranks} ranks{', over two hosts' if apart else ''}"
    key = f"empty.2x{ranks}{'.hosts' if apart else ''}"
    row = Measured(key, f"empty step, {shape}", "ms", goal=goal)
    fast = Measured(f"{key}.p10", f"empty step, {shape}, fastest tenth", "ms")
    cpu = Measured(f"{key}.cpu", f"empty step, {shape}, processor time of all ranks", "ms")
    rows = [row, fast, cpu]
    with ExitStack() as stack:
        if apart and bench.peer is not None:  # the peer's workers need host names that resolve; a namespace has none
            for measured in rows:
                measured.why_no_peer = "ours only: the peer needs hosts whose names resolve"
        of = bench.libraries if not apart else [x for x in bench.libraries if x.is_ours]
        crews = crews_of(bench, stack, rows, _NO_HEAL, None, ranks, hosts, libraries=of)
        for one in crews:
            one.call("steps", 20)
        for i in range(bench.pairs):
            for one in crews if i % 2 == 0 else crews[::-1]:
                before = one.cpu_seconds()
                took = sorted(x for rank in one.call("steps", number) for x in rank)
                spent = one.cpu_seconds() - before
                for measured, seconds in zip(rows, (median(took), took[len(took) // 10], spent / number), strict=True):
                    (measured.ours if one.library.is_ours else measured.peer).append(1e3 * seconds)
        dropped = sum(sum(one.call("dropped")) for one in crews)
    sampling = f"a sample is the median of {number} steps in each rank; {dropped} were dropped"
    row.note = "; ".join(x for x in (row.note, sampling) if x)
    return rows


def run_overhead(bench: Bench) -> list[Measured]:
    """Measure blocks of plain and fault-tolerant DDP steps in turn, in the same processes; both libraries are up."""
    rows = []
    for size, number in ((SMALL, 200), (LARGE, 10)):
        if bench.quick and size == LARGE:
            continue
        ratio, added, fast = _rows(size)
        with ExitStack() as stack:
            crews = crews_of(bench, stack, [ratio, added, fast], None, size)
            for one in crews:
                for which in ("plain", "ft"):
                    one.call("steps", which, number)  # warm up
            for i in range(bench.pairs):
                for one in crews if i % 2 == 0 else crews[::-1]:
                    (plain, plain_fast), (ft, ft_fast) = _block(one, number, plain_first=i % 2 == 0)
                    (ratio.ours if one.library.is_ours else ratio.peer).append(ft / plain)
                    (added.ours if one.library.is_ours else added.peer).append(1e3 * (ft - plain))
                    (fast.ours if one.library.is_ours else fast.peer).append(1e3 * (ft_fast - plain_fast))
                    if one.library.is_ours:
                        added.limit.append(1e3 * plain)
            dropped = sum(sum(one.call("dropped")) for one in crews)
        sampling = f"a sample is the median of {number} steps in each group; {dropped} were dropped"
        ratio.note = "; ".join(x for x in (ratio.note, sampling) if x)
        rows += [ratio, added, fast]
    return rows


def run_sharded(bench: Bench) -> list[Measured]:
    """Measure blocks of plain and fault-tolerant steps of a model that FSDP2 shards over two ranks in each group."""
    rows = []
    for size, number in ((SMALL, 50), (LARGE, 5)):
        if bench.quick and size == LARGE:
            continue
        what = "25 M parameters" if size == LARGE else "small MLP"
        row = Measured(
            f"hsdp.{size}", f"HSDP 2 x 2 / FSDP2 + plain all-reduce step, {what}", "x",
            goal=Goal(1.0) if size == LARGE else None, why_no_peer="the peer brings no reducer for sharded gradients",
        )  # fmt: skip
        plain_ms = Measured(f"hsdp.{size}.plain", f"a step of FSDP2 + plain all-reduce, {what}", "ms")
        plain_ms.why_no_peer = row.why_no_peer
        rows += [row, plain_ms]
        if bench.ours is None:
            continue
        with ExitStack() as stack:
            try:
                one = stack.enter_context(crew(bench.ours, _NO_HEAL, size, 2))
            except (NotOffered, GaveUp) as e:
                row.why_not = plain_ms.why_not = str(e)
                continue
            for which in ("plain", "ft"):
                one.call("steps", which, number)  # warm up
            for i in range(bench.pairs):
                (plain, _), (ft, _) = _block(one, number, plain_first=i % 2 == 0)
                row.ours.append(ft / plain)
                plain_ms.ours.append(1e3 * plain)
            row.note = f"a sample is the median of {number} steps in each rank; {sum(one.call('dropped'))} were dropped"
    return rows


def _rows(size: str) -> tuple[Measured, Measured, Measured]:
    """Return the rows of DDP: ratio of the medians, difference of the medians, difference of the fastest tenths."""
    large = size == LARGE
    what = "25 M parameters" if large else "small MLP"
    ratio = Measured(f"ddp.{size}", f"FT DDP / plain DDP step, {what}", "x", goal=Goal(0.95) if large else None)
    added = Measured(f"ddp.{size}.added", f"added to a step, {what}", "ms", goal=None if large else Goal(0.25))
    fast = Measured(
        f"ddp.{size}.p10", f"added to a step, {what}, fastest tenths", "ms", goal=None if large else Goal(0.25)
    )
    added.limit_is = "a step of plain DDP"
    return ratio, added, fast


def _block(one: Crew, number: int, *, plain_first: bool) -> list[tuple[float, float]]:
    """Run a block of each kind, and return the median and the fastest tenth in seconds: plain, then fault tolerant."""
    block = {}
    for which in ("plain", "ft") if plain_first else ("ft", "plain"):
        took = sorted(x for group in one.call("steps", which, number) for x in group)
        block[which] = median(took), took[len(took) // 10]
    return [block["plain"], block["ft"]]
