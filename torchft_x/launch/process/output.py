"""Relay of the workers' output through the supervisor: to the supervisor's stdout and stderr, and to a log file.

Workers write into named pipes (shim.py), so their output stays apart from the supervisor's own. With several workers
each line is prefixed with its rank. The end of each worker's stderr is kept, to be quoted if the worker fails. If lines are
wanted as JSON, each becomes an object of its own.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchft_x import log_lines
from torchft_x.timing import POLL

_CHUNK = 65536  # bytes; the capacity of a pipe, so that one read empties it
_READS = 16  # reads per pipe and call, so that a worker that prints without end can't block the main loop
_TAIL_LINES = 20  # lines of stderr kept per worker; the end of a Python traceback fits
_LINE_LIMIT = 65536  # bytes; a longer line is passed on in pieces
_EVENT = b'{"t":'  # start of a line for programs (observe/run/collected.py), which names its rank itself


LOG_BYTES, OLD_LOGS = 64 << 20, 7
"""Size in bytes at which a log file is rotated, and number of rotated files kept: ``NAME.1`` is the newest of them."""


class LogFile:
    """Log file that is appended to, and rotated at the end of a line once it is too large.

    Raises `OSError` if it can't be opened.
    """

    def __init__(self, path: Path, most_bytes: int = LOG_BYTES, old: int = OLD_LOGS) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._old = old
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        """Append the data, and rotate the file if it is due. Data that can't be written (full disk) is lost without an error."""
        write_all(self._fd, data)
        self._size += len(data)
        if self._size >= self._most_bytes and data.endswith(b"\n"):
            self._put_aside()

    def close(self) -> None:
        os.close(self._fd)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _put_aside(self) -> None:
        """Rotate the files by renaming them. A file keeps its inode, by which a reader that follows it finds the next one."""
        self._size = 0  # if a rename fails, rotation is retried only after `_most_bytes` more
        try:
            for number in range(self._old - 1, 0, -1):
                if (older := put_aside(self._path, number)).exists():
                    os.replace(older, put_aside(self._path, number + 1))
            os.replace(self._path, put_aside(self._path, 1))
            fd = self._open()
        except OSError:
            return
        os.close(self._fd)
        self._fd = fd


def put_aside(path: Path, number: int) -> Path:
    """Return the path of a rotated log file: number 1 is the newest."""
    return path.with_name(f"{path.name}.{number}")


def write_all(fd: int, data: bytes) -> None:
    """Write all of the data, and ignore errors: training goes on when the reader is gone or the disk is full."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return


class Relay:
    """Pipes of one attempt's workers. Passes their output on, and keeps the end of each stderr. Used by one thread.

    `first_rank` is given for one node of several. With `labels` each line becomes a JSON object with these labels
    (torchft_x.log_lines).
    """

    def __init__(
        self,
        folder: Path,
        workers: int,
        log: Path | None,
        first_rank: int | None = None,
        labels: Mapping[str, Any] | None = None,
    ) -> None:
        self._ranks = workers > 1 or first_rank is not None  # whether lines name the rank
        self._labels = labels
        self._whole_lines = self._ranks or labels is not None  # whether unfinished lines are held back
        self._first_rank = first_rank or 0  # group rank of the first worker; ranks below are local, from 0
        self._pipes: dict[int, tuple[int, int]] = {}  # our end -> (rank, 1 or 2)
        self._partial: dict[int, bytes] = {}  # our end -> a line not yet ended
        self._held_since: dict[int, float] = {}  # our end -> monotonic time of that line's newest piece
        self._tails: dict[int, deque[bytes]] = {}  # rank -> lines of stderr, the last may be partial
        self._open_line = {1: False, 2: False}  # descriptor -> whether our last write to it ended without a newline
        self._log = None if log is None else LogFile(log)
        for rank in range(workers):
            self._tails[rank] = deque([b""], maxlen=_TAIL_LINES)
            for target, name in ((1, "out"), (2, "err")):
                path = folder / f"{rank}.{name}"
                os.mkfifo(path, 0o600)
                # Opened for reading and writing: our own write end prevents a hang-up between two writers.
                fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                self._pipes[fd] = (rank, target)
                self._partial[fd] = b""

    def fds(self) -> list[int]:
        """Return the descriptors to poll for output."""
        return list(self._pipes)

    def pump(self) -> None:
        """Pass on the output that is available now."""
        for fd, (rank, target) in self._pipes.items():
            for _ in range(_READS):
                try:
                    data = os.read(fd, _CHUNK)
                except BlockingIOError:
                    break
                self._take(fd, rank, target, data)
                if len(data) < _CHUNK:
                    break
            # A line is held back because unbuffered Python writes its end separately; a progress bar has no end.
            if not self._whole_lines and time.monotonic() - self._held_since.get(fd, 0.0) > POLL:
                self._pass_unfinished(fd, target)

    def say(self, text: str) -> None:
        """Write a line of the supervisor's own to stderr and to the log."""
        for fd, (_, target) in self._pipes.items():
            if target == 2 and not self._whole_lines:
                self._pass_unfinished(fd, target)
        self._write(2, (b"\n" if self._open_line[2] else b"") + text.encode() + b"\n")

    def tail(self, rank: int) -> tuple[str, ...]:
        """Return the last lines of that worker's stderr, without empty ones."""
        lines = (line.decode("utf-8", "replace").rstrip() for line in self._tails.get(rank, ()))
        return tuple(line for line in lines if line)

    def close(self) -> None:
        """Pass on the remaining output and close the pipes. Every writer must be dead."""
        self.pump()
        for fd, (rank, target) in self._pipes.items():
            if self._partial[fd]:
                self._write(target, self._shaped(rank, target, self._partial[fd]))
            os.close(fd)
        self._pipes.clear()
        for target in (1, 2):
            if self._open_line[target]:  # the next output starts on a line of its own
                self._write(target, b"\n")
        if self._log is not None:
            self._log.close()
            self._log = None

    def _pass_unfinished(self, fd: int, target: int) -> None:
        if self._partial[fd]:
            self._write(target, self._partial[fd])
            self._partial[fd] = b""

    def _shaped(self, rank: int, target: int, line: bytes) -> bytes:
        """Return a line, given without its newline, as it is passed on: with its rank or labels, and a newline."""
        number = self._first_rank + rank
        if self._labels is not None:
            stream = "stderr" if target == 2 else "stdout"
            return log_lines.wrapped(line, **self._labels, rank=number if self._ranks else None, stream=stream) + b"\n"
        return b"[rank %d] %b\n" % (number, line) if self._ranks and not line.startswith(_EVENT) else line + b"\n"

    def _take(self, fd: int, rank: int, target: int, data: bytes) -> None:
        if target == 2:
            tail = self._tails[rank]
            first, *rest = data.split(b"\n")
            tail[-1] = (tail[-1] + first)[-_LINE_LIMIT:]
            tail.extend(rest)
        text = self._partial[fd] + data
        cut = text.rfind(b"\n") if self._whole_lines else max(text.rfind(b"\n"), text.rfind(b"\r"))
        whole, partial = text[: cut + 1], text[cut + 1 :]
        if len(partial) > _LINE_LIMIT:
            whole, partial = text + (b"\n" if self._whole_lines else b""), b""
        self._partial[fd], self._held_since[fd] = partial, time.monotonic()
        if self._whole_lines:
            whole = b"".join(self._shaped(rank, target, line) for line in whole.split(b"\n")[:-1])
        if whole:
            self._write(target, whole)

    def _write(self, target: int, data: bytes) -> None:
        self._open_line[target] = not data.endswith(b"\n")
        write_all(target, data)
        if self._log is not None:
            self._log.write(data)
