"""Heals from several sources at a time, each on a host with a link of 1 Gbit/s. They need root and iproute2."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bench import Bench, Measured
from benchmarks.heal import End
from benchmarks.hosts import Host, NoHosts, star
from benchmarks.libraries import Library
from benchmarks.stats import Goal

SOURCES = (1, 2, 3)
RATE = "1gbit"


def run_stripes(bench: Bench) -> list[Measured]:
    """Measure heals of ours alone from 1, 2 and 3 sources: the peer copies from one."""
    megabytes = bench.settings.get("megabytes") or (96 if bench.quick else 512)
    rows = [
        Measured(
            f"stripes.{k}",
            f"heal, {megabytes} MiB, {k} source{'s' * (k > 1)}, each on a link of {RATE}",
            "GB/s",
            goal=Goal(0.85, of="ours/limit", at_most=False) if k > 1 else None,
            limit_is=f"{k} x one source" if k > 1 else "",
            why_no_peer="it copies from one source",
            higher_is_better=True,
        )
        for k in SOURCES
    ]
    try:
        with star(max(SOURCES), RATE) as (middle, hosts):
            if bench.ours is not None:
                _measure(bench, bench.ours, rows, middle, hosts, megabytes)
    except NoHosts as e:
        for row in rows:
            row.why_not = f"this machine has no hosts with links of their own: {e}"
    return rows


def _measure(
    bench: Bench, library: Library, rows: list[Measured], middle: Host, hosts: list[Host], megabytes: int
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-stripes-"))
    size = (megabytes << 20) / 1e9
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)

        def end(role: str, host: Host) -> End:
            made = End(library, role, megabytes, folder, host)
            stack.callback(made.kill)
            return made

        sources, receiver = [end("source", host) for host in hosts], end("receiver", middle)
        metadata = [source.call("metadata") for source in sources]
        step = 0
        for i in range(-1, bench.pairs):  # the first only warms up
            rates: dict[int, float] = {}
            for k in SOURCES if i % 2 == 0 else SOURCES[::-1]:
                step += 1
                for source in sources[:k]:
                    source.call("freeze", step)  # a new step, so that no digest of an earlier heal is reused
                seconds, _ = receiver.call("fetch", metadata[0], step, "network", True, metadata[1:k])
                rates[k] = size / seconds
            for k, row in zip(SOURCES, rows, strict=True) if i >= 0 else ():
                row.ours.append(rates[k])
                if k > 1:
                    row.limit.append(k * rates[1])
