"""Faults against jobs of this host: finds their processes by the run's events, and signals them.

A process id may have been reused since the event was written. Each process is therefore pinned by a pidfd, then checked for
the run directory in its environment or arguments, and only then signalled through the pidfd.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path

from torchft_x.errors import ConfigError
from torchft_x.launch.chaos.schedule import Target
from torchft_x.launch.workers import probe_worker
from torchft_x.observe.console import harmless
from torchft_x.observe.events import is_event
from torchft_x.observe.processes import belongs, job_processes, lighthouse_process
from torchft_x.timing import ANSWER

_SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "drain": signal.SIGTERM,
    "supervisor": signal.SIGKILL,
    "lighthouse": signal.SIGKILL,
}
_ROLES = {"trainer": "worker", "supervisor": "supervisor"}
_LONGEST = 1 << 16  # bytes of a line that are read


class LocalRun:
    """`Targets` of a run on this host. The constructor raises `ConfigError` if the run is another user's."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._drained: set[int] = set()  # ids of processes that are leaving already, which may take seconds
        owner = run_dir.stat().st_uid
        if owner != os.geteuid():
            raise ConfigError(f"{harmless(run_dir)} belongs to another user ({owner}); only its owner may strike it.")

    def living(self) -> list[Target]:
        alive = set(job_processes(self.run_dir))
        self._drained &= alive
        written = (_first_line(path) for path in self.run_dir.glob("events/*.jsonl"))
        found = {t for t in written if t is not None and t.pid in alive - self._drained}
        serving = lighthouse_process(self.run_dir) if alive else None
        if serving is not None:
            found.add(Target("lighthouse", "", 0, serving))
        return sorted(found)

    def strike(self, target: Target, kind: str, seconds: float | None = None) -> bool:
        """Cause the fault, and return whether it took effect.

        Drain all workers of a group together, as its supervisor would, so that they leave at the same step.
        """
        if kind == "hang":
            return belongs(target.pid, self.run_dir) and self._hang(target, seconds)
        victims = [target]
        if kind == "drain":
            victims = [t for t in self.living() if t.role == "worker" and t.group == target.group]
        struck = [t.pid for t in victims if self._send(t.pid, _SIGNALS[kind])]
        if kind == "drain":
            self._drained.update(struck)
        return bool(struck)

    def _hang(self, target: Target, seconds: float | None) -> bool:
        """Order the worker to hang, through the socket by which its supervisor requests its stacks."""
        at = probe_worker.find(target.pid, _temporary(target.pid))
        word = probe_worker.HANG if seconds is None else f"{probe_worker.HANG} {seconds:.3f}"
        try:
            return at is not None and probe_worker.ask(at, word, ANSWER) == b"1"
        except probe_worker.NoAnswerError:  # the worker is ending
            return False

    def resume(self, target: Target) -> None:
        self._send(target.pid, signal.SIGCONT)

    def _send(self, pid: int, number: signal.Signals) -> bool:
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # the process has ended
            return False
        try:
            if not belongs(pid, self.run_dir):
                return False
            signal.pidfd_send_signal(fd, number)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def _temporary(pid: int) -> Path:
    """Return the process's folder for temporary files, which may differ from ours."""
    try:
        words = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        words = []
    named = [word[7:] for word in words if word.startswith(b"TMPDIR=/")]
    return Path(os.fsdecode(named[0])) if named else Path(tempfile.gettempdir())


def _first_line(path: Path) -> Target | None:
    """Return the process that writes this log, or None if it can't be struck."""
    try:
        with path.open("rb") as f:
            event = json.loads(f.readline(_LONGEST))
    except (OSError, ValueError, RecursionError):
        return None
    if not is_event(event) or event.get("role") not in _ROLES or not isinstance(event.get("pid"), int):
        return None
    return Target(_ROLES[event["role"]], str(event.get("group", "")), event.get("rank") or 0, event["pid"])
