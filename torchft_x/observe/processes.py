"""Search for the processes of a run on this host. Linux only: it reads /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torchft_x import env


def job_processes(run_dir: str | os.PathLike[str]) -> list[int]:
    """Return the ids of living processes, except ours, with this run directory in their environment or arguments.

    These are supervisors, the lighthouse, torchrun, workers and the processes that they started. Processes of other
    users can't be seen, and zombies don't count.
    """
    return [pid for pid in sorted(_pids()) if pid != os.getpid() and belongs(pid, run_dir)]


def belongs(pid: int, run_dir: str | os.PathLike[str]) -> bool:
    """Return whether a process is one of `job_processes`, or this one."""
    process, paths = _look(pid), {os.fspath(run_dir), str(Path(run_dir).resolve())}
    return process is not None and (process.environ.get(env.RUN_DIR) in paths or not paths.isdisjoint(process.words))


def lighthouse_process(run_dir: str | os.PathLike[str]) -> int | None:
    """Return the lighthouse among `job_processes`, or None."""
    for pid in reversed(job_processes(run_dir)):  # the newest first, because an older one may be about to end
        process = _look(pid)
        if process is not None and "torchft_x.rpc.lighthouse.main" in process.words:
            return pid
    return None


@dataclass(frozen=True)
class Orphan:
    """A process of a job without a launcher or supervisor."""

    pid: int
    command: str
    run_dir: str


@dataclass(frozen=True)
class _Process:
    parent: int
    words: list[str]  # words of its command line
    environ: dict[str, str]


def orphans() -> list[Orphan]:
    """Return the topmost processes whose launcher (local job) or supervisor is gone. Other users' can't be seen."""
    everybody = {pid: p for pid in _pids() if (p := _look(pid)) is not None}
    found = []
    for pid, process in sorted(everybody.items()):
        if pid != os.getpid() and process.words and _is_orphan(process, everybody.get(process.parent)):
            command = " ".join(w for w in process.words[1:5] if not w.startswith("-"))
            found.append(Orphan(pid, command or process.words[0], process.environ.get(env.RUN_DIR, "")))
    return found


def _is_orphan(process: _Process, parent: _Process | None) -> bool:
    if "--launcher_pid" in process.words[:-1]:  # a supervisor, or that of the lighthouse, of a local job
        return str(process.parent) != process.words[process.words.index("--launcher_pid") + 1]
    if env.ATTEMPT not in process.environ or process.parent == 0:  # a supervisor's children have it
        return False
    looked_after = parent is not None and (env.ATTEMPT in parent.environ or any("torchft_x" in w for w in parent.words))
    return not looked_after


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _look(pid: int) -> _Process | None:
    """Read a process from /proc. Return None if it is gone, or belongs to another user."""
    entry = Path("/proc", str(pid))
    try:
        # The second field is the program's name in parentheses, which may hold any characters.
        parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
        environ, words = (
            [os.fsdecode(w) for w in (entry / name).read_bytes().split(b"\0") if w] for name in ("environ", "cmdline")
        )
    except (OSError, IndexError, ValueError):
        return None
    return _Process(parent, words, dict(w.split("=", 1) for w in environ if "=" in w))
