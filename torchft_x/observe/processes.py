"""Which processes of this host belong to a run. Linux: reads /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torchft_x import env


def job_processes(run_dir: str | os.PathLike[str]) -> list[int]:
    """Ids of living processes that have this run directory in their environment or arguments, except our own.

    Supervisors, the lighthouse, torchrun, workers and whatever those started are among them. Processes of other
    users can't be seen, zombies don't count.
    """
    marks = _marks(run_dir)
    return [pid for pid in sorted(_pids()) if pid != os.getpid() and _is_marked(pid, marks)]


def belongs(pid: int, run_dir: str | os.PathLike[str]) -> bool:
    """Whether this is one of `job_processes`, or ourselves."""
    return _is_marked(pid, _marks(run_dir))


def _marks(run_dir: str | os.PathLike[str]) -> tuple[set[bytes], set[bytes]]:
    """What an environment has, and what arguments have."""
    paths = {os.fsencode(run_dir), os.fsencode(Path(run_dir).resolve())}
    return {env.RUN_DIR.encode() + b"=" + path for path in paths}, paths


def _is_marked(pid: int, marks: tuple[set[bytes], set[bytes]]) -> bool:
    entry = Path("/proc", str(pid))
    try:
        return bool(marks[0] & _words(entry / "environ") or marks[1] & _words(entry / "cmdline"))
    except OSError:  # gone in the meantime, or not ours
        return False


def lighthouse_process(run_dir: str | os.PathLike[str]) -> int | None:
    """The one of `job_processes` that serves; None: none does at present."""
    for pid in reversed(job_processes(run_dir)):  # the newest: the one before may be about to end
        try:
            if b"torchft_x.rpc.lighthouse.main" in _words(Path("/proc", str(pid), "cmdline")):
                return pid
        except OSError:
            continue
    return None


@dataclass(frozen=True)
class Orphan:
    """A process of a job that nobody looks after any more."""

    pid: int
    command: str
    run_dir: str


@dataclass(frozen=True)
class _Process:
    parent: int
    words: list[str]  # of its command
    environ: dict[str, str]


def orphans() -> list[Orphan]:
    """The topmost processes whose launcher (of a local job) or supervisor is gone. Other users' can't be seen."""
    everybody = {pid: p for pid in _pids() if (p := _look(pid)) is not None}
    found = []
    for pid, process in sorted(everybody.items()):
        if pid != os.getpid() and process.words and _is_orphan(process, everybody.get(process.parent)):
            command = " ".join(w for w in process.words[1:5] if not w.startswith("-"))
            found.append(Orphan(pid, command or process.words[0], process.environ.get(env.RUN_DIR, "")))
    return found


def _is_orphan(process: _Process, parent: _Process | None) -> bool:
    launcher = process.environ.get(env.LAUNCHER_PID)
    if launcher is not None:  # a supervisor or the lighthouse of a local job; what they start doesn't carry it
        return str(process.parent) != launcher
    # what a supervisor starts carries the attempt; a lighthouse that was started again may, too
    if env.ATTEMPT not in process.environ or "lighthouse" in process.words or process.parent == 0:
        return False
    looked_after = parent is not None and (env.ATTEMPT in parent.environ or any("torchft_x" in w for w in parent.words))
    return not looked_after


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _look(pid: int) -> _Process | None:
    """None: gone in the meantime, or not ours to read."""
    entry = Path("/proc", str(pid))
    try:
        # the second field is the program's name in parentheses and may hold anything
        parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
        environ = dict(w.split("=", 1) for w in map(os.fsdecode, _words(entry / "environ")) if "=" in w)
        words = [os.fsdecode(w) for w in (entry / "cmdline").read_bytes().split(b"\0") if w]
    except (OSError, IndexError, ValueError):
        return None
    return _Process(parent, words, environ)


def _words(path: Path) -> set[bytes]:
    return set(path.read_bytes().split(b"\0"))
