"""Output of one replica's process, written to the three files that TorchX's commands read.

A restarted process appends to the same files. In ``combined.log`` lines of stdout and stderr don't mix; an unfinished line
(a progress bar) is passed on after a moment.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from torchft_x.launch.process.output import LogFile
from torchft_x.timing import POLL

STDOUT, STDERR, COMBINED = "stdout.log", "stderr.log", "combined.log"
_CHUNK = 65536
_READS = 16  # reads per pipe and call, so that a process that prints without end can't block the keeper


class _Pipe:
    """Reading end of one stream."""

    def __init__(self, fd: int, log: LogFile) -> None:
        self.fd = fd
        self.log = log
        self.partial = b""  # unfinished line, held back from the combined log
        self.since = 0.0  # monotonic time of its newest piece


class Streams:
    """Log files of one replica, over all its processes. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._logs = {name: LogFile(folder / name) for name in (STDOUT, STDERR, COMBINED)}
        self._pipes: list[_Pipe] = []  # pipes of processes whose writers may still be alive
        self._open = False  # whether the combined log ends within a line
        self.last_line = ""  # last line of stderr

    def attach(self, process: subprocess.Popen[bytes]) -> None:
        """Take over the process's stdout and stderr, which must be pipes."""
        for stream, name in ((process.stdout, STDOUT), (process.stderr, STDERR)):
            assert stream is not None
            fd = os.dup(stream.fileno())
            stream.close()
            os.set_blocking(fd, False)
            self._pipes.append(_Pipe(fd, self._logs[name]))

    def fds(self) -> list[int]:
        """Return the descriptors to poll for output."""
        return [pipe.fd for pipe in self._pipes]

    def pump(self) -> None:
        """Pass on the output that is available now."""
        for pipe in list(self._pipes):
            for _ in range(_READS):
                try:
                    data = os.read(pipe.fd, _CHUNK)
                except BlockingIOError:
                    break
                if not data:
                    self._close(pipe)
                    break
                self._take(pipe, data)
            if pipe.partial and time.monotonic() - pipe.since > POLL:
                self._flush(pipe)

    def say(self, text: str) -> None:
        """Write a line of the keeper's own to stderr.log and combined.log."""
        for name in (STDERR, COMBINED):
            self._logs[name].write(text.encode() + b"\n")
        self._open = False

    def close(self) -> None:
        """Pass on the remaining output and close the files. Every writer must be dead."""
        self.pump()
        for pipe in list(self._pipes):
            self._close(pipe)
        for log in self._logs.values():
            log.close()
        self._logs = {}

    def _take(self, pipe: _Pipe, data: bytes) -> None:
        pipe.log.write(data)
        if pipe.log is self._logs[STDERR]:
            lines = [line for line in data.split(b"\n") if line.strip()]
            self.last_line = lines[-1].decode("utf-8", "replace").strip()[-1000:] if lines else self.last_line
        text = pipe.partial + data
        cut = text.rfind(b"\n") + 1
        self._combine(text[:cut])
        pipe.partial, pipe.since = text[cut:], time.monotonic()
        if len(pipe.partial) > _CHUNK:
            self._flush(pipe)

    def _flush(self, pipe: _Pipe) -> None:
        self._combine(pipe.partial)
        pipe.partial = b""

    def _close(self, pipe: _Pipe) -> None:
        self._flush(pipe)
        if self._open:  # by that piece, or by one passed on earlier
            self._combine(b"\n")
        os.close(pipe.fd)
        self._pipes.remove(pipe)

    def _combine(self, data: bytes) -> None:
        if data:
            self._logs[COMBINED].write(data)
            self._open = not data.endswith(b"\n")
