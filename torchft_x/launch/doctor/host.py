"""Checks of this machine: run directory, limits, shared memory, and leftovers of earlier runs."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torchft_x.launch.doctor.runner import Case, Finding, ok, problem, warning
from torchft_x.observe.processes import orphans
from torchft_x.units import amount

FREE = 1 << 30  # least free bytes of the run directory, for logs and events of a long run
SHARED = 1 << 30  # least free bytes of /dev/shm; a container's default is 64 MiB
LIMIT = 1024  # least number of open files and of processes
SKEW = 2.0  # tolerated difference, in seconds, between this clock and the file server's


def check_run_dir(case: Case) -> Iterator[Finding]:
    yield run_dir_finding(case.run_dir or case.folder / "runs")


def run_dir_finding(run_dir: Path, clock: Callable[[], float] = time.time) -> Finding:
    """Return the finding about the run directory, after writing and removing a file in it.

    If the directory does not exist yet, use the nearest existing folder above it.
    """
    what = f"{run_dir}"
    try:
        if os.path.lexists(run_dir) and not run_dir.is_dir():
            return problem(f"{what} is no directory; choose another with --run_dir.")
        folder = next(p for p in (run_dir, *run_dir.absolute().parents) if p.is_dir())
        if folder != run_dir:
            what = f"{run_dir} (not there yet, would be made in {folder})"
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".torchft_x-doctor-") as f:
            before = clock()
            f.write(b"x")
            f.flush()
            os.fsync(f.fileno())
            skew = os.stat(f.name).st_mtime - before
    except OSError as e:
        return problem(f"{what} can't be written ({e.strerror}); choose another with --run_dir.")
    free = shutil.disk_usage(folder).free
    shown = f"{what} can be written, {amount(free)} free"
    if abs(skew) > SKEW:
        ahead = "ahead of" if skew > 0 else "behind"
        return warning(f"{shown}; its server's clock is {abs(skew):.1f} s {ahead} this machine's: run NTP on both.")
    if free < FREE:
        return warning(f"{shown}: that is little for logs, events and checkpoints; free some or choose another.")
    return ok(f"{shown}.")


def check_limits(_: Case) -> Iterator[Finding]:
    yield limit_finding("open files", resource.getrlimit(resource.RLIMIT_NOFILE), "ulimit -n")
    yield limit_finding("processes", resource.getrlimit(resource.RLIMIT_NPROC), "ulimit -u")


def limit_finding(what: str, limits: tuple[int, int], command: str) -> Finding:
    soft, hard = (float("inf") if n == resource.RLIM_INFINITY else n for n in limits)
    shown = f"No limit of {what}" if soft == float("inf") else f"At most {soft:.0f} {what}"
    if soft >= LIMIT:
        return ok(f"{shown}.")
    ask = f"the hard limit is {hard:.0f}: ask the administrator for {LIMIT}"
    remedy = f"{command} {LIMIT}" if hard >= LIMIT else ask
    return warning(f"{shown}, and a job with many workers needs more; {remedy}.")


def check_shared_memory(_: Case) -> Iterator[Finding]:
    yield shared_memory_finding(Path("/dev/shm"))


def shared_memory_finding(folder: Path) -> Finding:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return warning(f"There is no {folder}; DataLoader workers and NCCL need it. Mount a tmpfs there.")
    shown = f"{folder} has {amount(usage.free)} of {amount(usage.total)} free"
    if usage.free < SHARED:
        return warning(
            f"{shown}; DataLoader workers and NCCL use it and die with a bus error when it is full. Give the container more "
            "(docker --shm-size 8g; on Kubernetes an emptyDir of medium Memory)."
        )
    return ok(f"{shown}.")


def check_leftovers(_: Case) -> Iterator[Finding]:
    left = orphans()
    if not left:
        yield ok("No process of an earlier run whose launcher is gone.")
        return
    shown = ", ".join(f"{p.pid} ({p.command}, of {p.run_dir or 'no run directory'})" for p in left[:8])
    more = f" and {len(left) - 8} more" if len(left) > 8 else ""
    pids = " ".join(str(p.pid) for p in left)
    yield warning(
        f"Processes of earlier runs whose launcher is gone: {shown}{more}. If they are no job of yours: kill {pids}"
    )
