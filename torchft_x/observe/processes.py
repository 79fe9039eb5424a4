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
    marks = _marks(run_dir)
    return [pid for pid in sorted(_pids()) if pid != os.getpid() and _is_marked(pid, marks)]


def belongs(pid: int, run_dir: str | os.PathLike[str]) -> bool:
    """Return whether a process is one of `job_processes`, or this one."""
    return _is_marked(pid, _marks(run_dir))


def _marks(run_dir: str | os.PathLike[str]) -> tuple[set[bytes], set[bytes]]:
    """Return the words that mark a run's process: those of its environment, and those of its arguments."""
    paths = {os.fsencode(run_dir), os.fsencode(Path(run_dir).resolve())}
    return {env.RUN_DIR.encode() + b"=" + path for path in paths}, paths


def _is_marked(pid: int, marks: tuple[set[bytes], set[bytes]]) -> bool:
    entry = Path("/proc", str(pid))
    try:
        return bool(marks[0] & _words(entry / "environ") or marks[1] & _words(entry / "cmdline"))
    except OSError:  # the process is gone, or belongs to another user
        return False


def lighthouse_process(run_dir: str | os.PathLike[str]) -> int | None:
    """Return the lighthouse among `job_processes`, or None."""
    for pid in reversed(job_processes(run_dir)):  # the newest first, because an older one may be about to end
        try:
            if b"torchft_x.rpc.lighthouse.main" in _words(Path("/proc", str(pid), "cmdline")):
                return pid
        except OSError:
            continue
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
        environ = dict(w.split("=", 1) for w in map(os.fsdecode, _words(entry / "environ")) if "=" in w)
        words = [os.fsdecode(w) for w in (entry / "cmdline").read_bytes().split(b"\0") if w]
    except (OSError, IndexError, ValueError):
        return None
    return _Process(parent, words, environ)


def _words(path: Path) -> set[bytes]:
    return set(path.read_bytes().split(b"\0"))
