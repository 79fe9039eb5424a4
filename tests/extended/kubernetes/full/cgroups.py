"""Cgroups (version 1) that hold all processes of a node: made, listed, killed.

Run as ``python -m tests.extended.kubernetes.full.cgroups PREFIX``, the module waits for the end of its stdin, then ends
all cgroups whose name begins with PREFIX. Shims and containers have no parent, and their starter may have been killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_NEEDED = (
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "pids",
    "systemd",
)  # controllers without which this kubelet doesn't start


def missing(root: Path = ROOT) -> str:
    """Return a sentence about what a kubelet of 1.20 lacks on this machine, or '' if nothing."""
    lacking = [name for name in _NEEDED if not (root / name / "cgroup.procs").exists()]
    if not lacking:
        return ""
    return f"A kubelet of 1.20 needs cgroups of version 1 at {root}; this machine lacks {', '.join(lacking)}."


def hierarchies(root: Path = ROOT) -> list[Path]:
    return sorted(p for p in root.iterdir() if not p.is_symlink() and (p / "cgroup.procs").exists())


def make(name: str, root: Path = ROOT) -> Path:
    """Make the cgroup `name` in all hierarchies.

    Return the file into which a process of the node writes its id to enter the cgroup.
    """
    for hierarchy in hierarchies(root):
        made = hierarchy / name
        made.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cgroup, which no process may then enter
            if (hierarchy / setting).exists():
                (made / setting).write_text((hierarchy / setting).read_text())
    daemons = root / "pids" / name / "daemons"
    daemons.mkdir()
    return daemons / "cgroup.procs"


def pids(name: str, root: Path = ROOT) -> set[int]:
    """Return the ids of all processes in `name` and below."""
    found: set[int] = set()
    for hierarchy in hierarchies(root):
        for listed in (hierarchy / name).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):  # the cgroup has just been removed
                found |= {int(pid) for pid in listed.read_text().split()}
    return found - {0}  # 0 stands for processes of another namespace


def end(name: str, seconds: float = 30.0, root: Path = ROOT) -> None:
    """Kill all processes in `name` and below, and remove it. Raise `TimeoutError` that names the survivors."""
    deadline = time.monotonic() + seconds
    while True:
        for pid in pids(name, root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if _removed(name, root):
            return
        if time.monotonic() > deadline:
            left = sorted(pids(name, root))
            raise TimeoutError(
                f"The cgroups {name} can't be removed; after {seconds:.0f} s there are processes {left}."
            )
        time.sleep(0.02)


def _removed(name: str, root: Path) -> bool:
    left = False
    for hierarchy in hierarchies(root):
        top = hierarchy / name
        inner = sorted((p for p in top.rglob("*") if p.is_dir()), key=lambda p: len(p.parts), reverse=True)
        for folder in [*inner, top]:
            with contextlib.suppress(OSError):  # the folder never existed, or a process is still dying in it
                folder.rmdir()
        left = left or top.exists()
    return not left


def main(prefix: str) -> None:
    sys.stdin.read()
    names = {p.name for hierarchy in hierarchies() for p in hierarchy.iterdir() if p.name.startswith(prefix)}
    for name in sorted(names):
        end(name)


if __name__ == "__main__":
    main(sys.argv[1])
