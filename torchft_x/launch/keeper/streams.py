"""Output of one replica's process, written to the three files that TorchX's commands read.

A restarted process appends to the same files. Output is passed on as it comes: supervisors write whole lines (output.py), so
that those of stdout and stderr don't mix in ``combined.log``.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from torchft_x.launch.process.output import LogFile

STDOUT, STDERR, COMBINED = "stdout.log", "stderr.log", "combined.log"
_CHUNK = 65536
_READS = 16  # reads per pipe and call, so that a process that prints without end can't block the keeper


class Streams:
    """Log files of one replica, over all its processes. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._logs = {name: LogFile(folder / name) for name in (STDOUT, STDERR, COMBINED)}
        self._pipes: dict[int, LogFile] = {}  # pipes whose writers may still be alive, and their logs
        self._open = False  # whether the combined log ends within a line
        self.last_line = ""  # last line of stderr

    def attach(self, process: subprocess.Popen[bytes]) -> None:
        """Take over the process's stdout and stderr, which must be pipes."""
        for stream, name in ((process.stdout, STDOUT), (process.stderr, STDERR)):
            assert stream is not None
            fd = os.dup(stream.fileno())
            stream.close()
            os.set_blocking(fd, False)
            self._pipes[fd] = self._logs[name]

    def fds(self) -> list[int]:
        """Return the descriptors to poll for output."""
        return list(self._pipes)

    def pump(self) -> None:
        """Pass on the output that is available now."""
        for fd, log in list(self._pipes.items()):
            for _ in range(_READS):
                try:
                    data = os.read(fd, _CHUNK)
                except BlockingIOError:
                    break
                if not data:
                    self._close(fd)
                    break
                log.write(data)
                self._combine(data)
                if log is self._logs[STDERR]:
                    lines = [line for line in data.split(b"\n") if line.strip()]
                    self.last_line = lines[-1].decode("utf-8", "replace").strip()[-1000:] if lines else self.last_line

    def say(self, text: str) -> None:
        """Write a line of the keeper's own to stderr.log and combined.log."""
        line = text.encode() + b"\n"
        self._logs[STDERR].write(line)
        self._end_line()
        self._combine(line)

    def close(self) -> None:
        """Pass on the remaining output and close the files. Every writer must be dead."""
        self.pump()
        for fd in list(self._pipes):
            self._close(fd)
        for log in self._logs.values():
            log.close()
        self._logs = {}

    def _close(self, fd: int) -> None:
        self._end_line()
        os.close(fd)
        del self._pipes[fd]

    def _end_line(self) -> None:
        if self._open:
            self._combine(b"\n")

    def _combine(self, data: bytes) -> None:
        self._logs[COMBINED].write(data)
        self._open = not data.endswith(b"\n")
