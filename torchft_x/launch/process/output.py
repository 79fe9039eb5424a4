"""What the workers print, on its way through the supervisor: to its own stdout and stderr, and to a log file.

Workers write into named pipes (see shim.py), so their words stay apart from the supervisor's own. With several workers
each line gets its rank. The end of each worker's stderr is kept, to be quoted when the worker fails. Where lines are wanted as
JSON, each becomes an object of its own.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchft_x import log_lines

_CHUNK = 65536  # the capacity of a pipe: one read empties it
_READS = 16  # per pipe and call, so that a worker that never stops printing can't keep us from everything else
_TAIL_LINES = 20  # of stderr, kept per worker; a Python traceback's end fits
_LINE_LIMIT = 65536  # bytes; a longer line is passed on in pieces
# Seconds a single worker's unfinished line is held back: unbuffered Python writes a line and its end apart, and what
# others print must not come between them. A progress bar (no line end) is passed on after it.
_HOLD = 0.05
_EVENT = b'{"t":'  # begins a line that programs read (observe/run/collected.py); it says itself whose it is


LOG_BYTES, OLD_LOGS = 64 << 20, 7
"""How large a log file becomes, and how many before it are kept: ``NAME.1`` is the newest of these."""


class LogFile:
    """A file to append to, which is put aside at the end of a line once it is too large. Raises `OSError` if it can't be opened."""

    def __init__(self, path: Path, most_bytes: int = LOG_BYTES, old: int = OLD_LOGS) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._old = old
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        """A full disk is no reason to stop: what can't be written is lost."""
        write_all(self._fd, data)
        self._size += len(data)
        if self._size >= self._most_bytes and data.endswith(b"\n"):
            self._put_aside()

    def close(self) -> None:
        os.close(self._fd)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _put_aside(self) -> None:
        """A file keeps its inode under its new name, by which who follows it finds what came next."""
        self._size = 0  # if anything fails below, it is tried again only after as many bytes
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
    """Where the file before is, the one before that ..."""
    return path.with_name(f"{path.name}.{number}")


def write_all(fd: int, data: bytes) -> None:
    """Nobody reads us any more, or the disk is full: training goes on."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return


class Relay:
    """The pipes of one life. Used by one thread. `first_rank` is given for one node of several, `labels` where each line becomes
    a JSON object (torchft_x.log_lines) that has them."""

    def __init__(
        self,
        folder: Path,
        workers: int,
        log: Path | None,
        first_rank: int | None = None,
        labels: Mapping[str, Any] | None = None,
    ) -> None:
        self._ranks = workers > 1 or first_rank is not None  # whether lines say the rank
        self._labels = labels
        self._whole_lines = self._ranks or labels is not None  # whether nothing but these is passed on
        self._first_rank = first_rank or 0  # group rank of the first worker; all else here counts from 0
        self._pipes: dict[int, tuple[int, int]] = {}  # our end -> (rank, 1 or 2)
        self._partial: dict[int, bytes] = {}  # our end -> a line not yet ended
        self._held_since: dict[int, float] = {}  # our end -> when that line's newest piece came
        self._tails: dict[int, deque[bytes]] = {}  # rank -> lines of stderr, the last may be partial
        self._open_line = {1: False, 2: False}  # whether what we last wrote there ended without a newline
        self._log = None if log is None else LogFile(log)
        for rank in range(workers):
            self._tails[rank] = deque([b""], maxlen=_TAIL_LINES)
            for target, name in ((1, "out"), (2, "err")):
                path = folder / f"{rank}.{name}"
                os.mkfifo(path, 0o600)
                # read and write: an end that we hold open ourselves never reports a hang-up between two writers
                fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                self._pipes[fd] = (rank, target)
                self._partial[fd] = b""

    def fds(self) -> list[int]:
        """To wait on."""
        return list(self._pipes)

    def pump(self) -> None:
        """Pass on what is there."""
        for fd, (rank, target) in self._pipes.items():
            for _ in range(_READS):
                try:
                    data = os.read(fd, _CHUNK)
                except BlockingIOError:
                    break
                self._take(fd, rank, target, data)
                if len(data) < _CHUNK:
                    break
            if not self._whole_lines and time.monotonic() - self._held_since.get(fd, 0.0) > _HOLD:
                self._pass_unfinished(fd, target)

    def say(self, text: str) -> None:
        """A line of the supervisor's own, on stderr and in the log."""
        for fd, (_, target) in self._pipes.items():
            if target == 2 and not self._whole_lines:
                self._pass_unfinished(fd, target)
        self._write(2, (b"\n" if self._open_line[2] else b"") + text.encode() + b"\n")

    def tail(self, rank: int) -> tuple[str, ...]:
        """The last lines of that worker's stderr, empty ones left out."""
        lines = (line.decode("utf-8", "replace").rstrip() for line in self._tails.get(rank, ()))
        return tuple(line for line in lines if line)

    def close(self) -> None:
        """Pass on what is left. Every writer must be dead."""
        self.pump()
        for fd, (rank, target) in self._pipes.items():
            if self._partial[fd]:
                self._write(target, self._shaped(rank, target, self._partial[fd]))
            os.close(fd)
        self._pipes.clear()
        for target in (1, 2):
            if self._open_line[target]:  # whatever is said next gets a line of its own
                self._write(target, b"\n")
        if self._log is not None:
            self._log.close()
            self._log = None

    def _pass_unfinished(self, fd: int, target: int) -> None:
        if self._partial[fd]:
            self._write(target, self._partial[fd])
            self._partial[fd] = b""

    def _shaped(self, rank: int, target: int, line: bytes) -> bytes:
        """A line without its end, with it."""
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
