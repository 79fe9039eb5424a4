"""Probes one worker: its status in shared memory; its stacks and Flight Recorder through its unix socket.

train/introspection/setup.py serves the socket. A worker that doesn't answer is shown as the kernel sees it.
Standard library only. Each request has one deadline for all of it, and a limit of the answer's size.
"""

from __future__ import annotations

import ctypes
import glob
import os
import signal
import socket
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchft_x.launch.process import process_tree
from torchft_x.launch.process.hangs import STOPPED
from torchft_x.observe import worker_status

STACKS, RECORDER, HANG = "stacks", "recorder", "hang"
"""Requests to a worker. `HANG` may be followed by a number of seconds."""
_LIMITS = {STACKS: 1 << 20, RECORDER: 1 << 24, HANG: 1}  # bytes; a full Flight Recorder (2,000) has 1 MB
SCRATCH = "torchft_x-"
"""Prefix of a supervisor's folder in the temporary one. It has a folder for each attempt."""
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 16
_THREADS = 200  # largest number of threads of a process that are described
_LOOKS = 8  # number of reads of a status that is being written
_AGAIN = 0.0005  # seconds between those reads
_ASLEEP = 0.2  # seconds for which all threads of a process must sleep before a signal requests its stacks
_SIGNAL = 1.0  # seconds for the stacks to be written
_DEAD = ("", "Z", "X")


class NoAnswerError(Exception):
    """Error: the worker did not answer. The message gives the reason."""


@dataclass(frozen=True)
class Target:
    """Worker process of this host."""

    rank: int  # rank in its group
    pid: int
    folder: Path  # private folder of its attempt


def find(pid: int, temporary: Path) -> Target | None:
    """Return the worker with this process id, by the link in the folder of its attempt below `temporary`.

    Return None if there is no such link: the worker accepts no requests.
    """
    # Path.glob would raise if any folder, also another user's, were removed during the search.
    for link in map(Path, glob.glob(f"{glob.escape(str(temporary))}/{SCRATCH}*/*/*.stacks")):
        try:
            if os.readlink(link).startswith(f"/proc/{pid}/"):
                return Target(int(link.stem), pid, link.parent)
        except (OSError, ValueError):  # the worker has just ended
            continue
    return None


class View:
    """Open status of a worker. It stays readable while the worker hangs, and after its death."""

    def __init__(self, target: Target) -> None:
        """Open the worker's status. Raise `NoAnswerError` if it has none."""
        try:
            self._fd = _open_memory(target.folder / f"{target.rank}.status")
        except OSError:
            raise NoAnswerError("it shows no status (yet)") from None

    def read(self) -> dict[str, Any]:
        """Return the worker's status. Raise `NoAnswerError` if it can't be read."""
        for _ in range(_LOOKS):
            # Read only the moments twice: longer reads would be torn by writes between them more often.
            first = os.pread(self._fd, worker_status.MOMENTS, 0)
            later = os.pread(self._fd, worker_status.MOMENTS, 0)
            found = worker_status.newest(first)
            if found is not None and worker_status.same(found, later):
                story = worker_status.story(os.pread(self._fd, worker_status.SIZE, 0))
                return worker_status.status_of(found[1], story, time.monotonic(), time.time())
            time.sleep(_AGAIN)
        raise NoAnswerError("its status can't be read")

    def close(self) -> None:
        os.close(self._fd)


def _open_memory(path: Path) -> int:
    """Open a file without blocking. Raise OSError if it is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is no file")
    return fd


def status(target: Target) -> dict[str, Any]:
    """Return the worker's status. Raise `NoAnswerError` if it has none, or it can't be read."""
    view = View(target)
    try:
        return view.read()
    finally:
        view.close()


def goes_on(target: Target) -> bool:
    """Return whether the worker is neither dead nor stopped."""
    return process_tree.state(target.pid) not in (*STOPPED, *_DEAD)


def ask(target: Target, word: str, seconds: float) -> bytes:
    """Send a request and return the whole answer. Raise `NoAnswerError` if it does not arrive within `seconds`."""
    deadline = time.monotonic() + seconds
    if not goes_on(target):
        raise NoAnswerError(f"{word}: it can't answer")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            _hurry(connection, deadline)
            _connect(connection, target)
            connection.sendall(f"{word}\n".encode())
            (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, deadline))
            most = _LIMITS[word.split()[0]]
            if length > most:
                raise NoAnswerError(f"{word}: its answer is longer than {most} bytes")
            return _receive(connection, length, deadline)
    except FileNotFoundError:
        raise NoAnswerError(f"{word}: it takes no questions (yet, or any more)") from None
    except TimeoutError:
        raise NoAnswerError(f"{word}: it did not answer within {seconds:g} s") from None
    except OSError as e:
        raise NoAnswerError(f"{word}: its socket fails: {e}") from None


def _connect(connection: socket.socket, target: Target) -> None:
    """Connect to the worker's socket by a short path, because the kernel allows only 107 bytes."""
    at = os.open(target.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{at}/{target.rank}.sock")
    finally:
        os.close(at)


def _receive(connection: socket.socket, length: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < length:
        _hurry(connection, deadline)
        more = connection.recv(min(_CHUNK, length - len(data)))
        if not more:
            raise ConnectionError("it ends in the middle of an answer")
        data += more
    return bytes(data)


def _hurry(connection: socket.socket, deadline: float) -> None:
    """Set the socket's timeout to the time left until the deadline. Raise TimeoutError if there is none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def stacks_by_signal(target: Target, said: dict[str, Any]) -> bytes:
    """Return the Python stacks of a process in which a thread sleeps and holds the GIL, or b"" if they can't be read.

    All threads must sleep, because the signal handler reads the other threads' frames, which must not change meanwhile. The
    signal goes to one thread, which ends before Python does. A process without that thread ignores the signal.
    """
    thread = said.get("answers")
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # glibc 2.30
    if tgkill is None or not isinstance(thread, int) or not 0 < thread < 1 << 31:
        return b""
    try:
        fd = _open_memory(target.folder / f"{target.rank}.stacks")
    except OSError:
        return b""
    try:
        before = os.fstat(fd).st_size
        if not _sleeps(target.pid) or status(target).get("leaving"):
            return b""
        if tgkill(target.pid, thread, int(signal.SIGURG)) != 0:
            return b""
        until, size = time.monotonic() + _SIGNAL, before
        while time.monotonic() < until:
            time.sleep(0.05)
            size, last = os.fstat(fd).st_size, size
            if before < size == last:
                break
        return os.pread(fd, min(size - before, _LIMITS[STACKS]), before)
    except (OSError, NoAnswerError):
        return b""
    finally:
        os.close(fd)


def _sleeps(pid: int) -> bool:
    """Return whether all threads sleep for a while. Threads that wait for the GIL wake up briefly now and then."""
    before = _used(pid)
    time.sleep(_ASLEEP)
    after = _used(pid)
    return bool(after) and all(
        state == "S" and ticks - before.get(task, ("", 0))[1] <= 1 for task, (state, ticks) in after.items()
    )


def _used(pid: int) -> dict[str, tuple[str, int]]:
    """Return state and used processor time, in hundredths of a second, of each thread."""
    used = {}
    try:
        for task in os.listdir(f"/proc/{pid}/task")[:_THREADS]:
            words = _read(f"/proc/{pid}/task/{task}/stat").rpartition(")")[2].split()
            used[task] = (words[0], int(words[11]) + int(words[12]))
    except (OSError, ValueError, IndexError):
        return {}
    return used


def why_silent(pid: int) -> str:
    """Return a clause with the probable reason why a process doesn't answer."""
    state = process_tree.state(pid)
    if state in STOPPED:
        return "it is stopped (a signal or a debugger)"
    if state in _DEAD:
        return "it is dead"
    if state == "D":
        return "it waits for a device or a disk, and no signal reaches it"
    return "it runs, but no thread of it gets to answer: does one hold Python's lock?"


def kernel_view(pid: int) -> str:
    """Return a line for each thread with its state, name and place in the kernel, as far as /proc may be read."""
    lines = []
    try:
        tasks = sorted(os.listdir(f"/proc/{pid}/task"), key=int)[:_THREADS]
    except OSError:
        return f"process {pid} is gone\n"
    for task in tasks:
        words = {name: _read(f"/proc/{pid}/task/{task}/{name}") for name in ("comm", "wchan", "stack", "stat")}
        letter = words["stat"].rpartition(")")[2].split()[:1]
        place = words["wchan"] if words["wchan"] not in ("", "0") else "?"
        lines.append(f"thread {task} ({words['comm']}) state {''.join(letter) or '?'} in {place}")
        lines += [f"    {line}" for line in words["stack"].splitlines()[:20]]
    return "\n".join(lines) + "\n"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(4096).strip()
    except OSError:
        return ""
