"""Child processes whose output goes to a file, and waiting for conditions. No process is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torchft_x import env

T = TypeVar("T")

ANSWER = 180.0
"""Seconds a worker may take for an answer. The peer alone may wait 60 s for a missing group."""


class GaveUp(Exception):
    """Raised when a condition did not come true in time, or a process failed."""


def wait_for(condition: Callable[[], T | None], seconds: float, what: str, poll: float = 0.01) -> T:
    """Return the first truthy value of `condition()`, called each `poll` seconds.

    Raise `GaveUp` naming `what` after 3 x `seconds`, times the time scale of the tests.
    """
    seconds *= 3 * env.time_scale()
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise GaveUp(f"{what}: not within {seconds:.0f} s")
        time.sleep(poll)


def listens(bind: str) -> bool:
    """Return whether a connect to ``host:port`` is accepted."""
    host, port = bind.split(":")
    try:
        socket.create_connection((host, int(port)), 1.0).close()
    except OSError:
        return False
    return True


class Child:
    """A process in a session of its own. `folder` is its working directory, and holds its temporary files, too."""

    def __init__(
        self, command: Sequence[str], environ: dict[str, str], log: Path, folder: Path, *, pipes: bool = False
    ) -> None:
        self.command = list(command)
        self.log = log
        pipe = subprocess.PIPE if pipes else None
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command,
                env=environ | {"TMPDIR": str(folder)},
                cwd=folder,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or out,
                stderr=out,
                start_new_session=True,
                text=True if pipes else None,
            )
        self.pid = self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> float:
        """Send the signal, and return the monotonic time at which it was sent."""
        t = time.monotonic()
        os.kill(self.pid, number)
        return t

    def kill(self) -> float:
        """Send SIGKILL to the process's session, reap it, and return the monotonic time of the signal."""
        t = time.monotonic()
        if self.alive:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return t

    def last_words(self, lines: int = 5) -> str:
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in text[-lines:])


class Worker(Child):
    """A process that reads a JSON list per line and answers each with a JSON line."""

    def __init__(self, command: Sequence[str], environ: dict[str, str], log: Path, folder: Path) -> None:
        super().__init__(command, environ, log, folder, pipes=True)

    def ask(self, *command: Any) -> None:
        """Send a command without waiting for the answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` raises

    def has_answered(self, within: float) -> bool:
        """Return whether an answer, or the end of the output, can be read within so many seconds."""
        return bool(select.select([self.process.stdout], [], [], within)[0])

    def answer(self) -> Any:
        """Return the next answer. Raise `GaveUp` if the process ended, or is silent for `ANSWER` seconds."""
        assert self.process.stdout is not None
        if not self.has_answered(ANSWER):
            raise GaveUp(f"no answer within {ANSWER:.0f} s from {' '.join(self.command)}:\n{self.last_words()}")
        line = self.process.stdout.readline()
        if not line:
            raise GaveUp(f"it ended: {' '.join(self.command)}:\n{self.last_words()}")
        return json.loads(line)


def kill_marked(mark: str) -> None:
    """Send SIGKILL to every process whose command line contains `mark`, until there is none."""
    while marked := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_marked(pid, mark)]:
        for pid in marked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _is_marked(pid: int, mark: str) -> bool:
    try:  # a zombie has no command line
        return pid != os.getpid() and mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Return the process's memory in 1e6 bytes, by default the resident one. Raise `GaveUp` without that field."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise GaveUp(f"process {pid} does not tell its {field}")


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process so far, in seconds, at a resolution of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
