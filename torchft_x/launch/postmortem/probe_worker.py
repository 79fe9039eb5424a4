"""One worker of our own: where it is, read from its memory; after an event its stacks and Flight Recorder, asked over its
unix socket (train/introspection/setup.py). Where it doesn't answer, what the kernel says.

Standard library only. Each question has a deadline for the whole of it and a limit of what is read.
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
from torchft_x.launch.process.stopped import STOPPED
from torchft_x.observe import worker_status

STACKS, RECORDER, HANG = "stacks", "recorder", "hang"
"""What can be asked for; the last one with a number of seconds, or without."""
_LIMITS = {STACKS: 1 << 20, RECORDER: 1 << 24, HANG: 1}  # bytes; a full Flight Recorder (2,000) has 1 MB
SCRATCH = "torchft_x-"
"""How a supervisor's folder in the temporary one begins; in it is one for each life."""
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 16
_THREADS = 200  # of a process, described at most
_LOOKS = 8  # at a status that is being written
_AGAIN = 0.0005  # seconds between them
_ASLEEP = 0.2  # seconds in which no thread of a process may run before a signal asks for its stacks
_SIGNAL = 1.0  # seconds for them to be written
_DEAD = ("", "Z", "X")


class Silent(Exception):
    """It did not answer; the text says how."""


@dataclass(frozen=True)
class Target:
    """A worker process of this host."""

    rank: int  # in its group
    pid: int
    folder: Path  # private, of its life


def find(pid: int, temporary: Path) -> Target | None:
    """The worker with this process id, by what it has laid into the folder of its life below `temporary`; None: it takes no
    questions."""
    # Not Path.glob, which raises if a folder, of anybody's, goes away meanwhile.
    for link in map(Path, glob.glob(f"{glob.escape(str(temporary))}/{SCRATCH}*/*/*.stacks")):
        try:
            if os.readlink(link).startswith(f"/proc/{pid}/"):
                return Target(int(link.stem), pid, link.parent)
        except (OSError, ValueError):  # it has just ended
            continue
    return None


class View:
    """A worker's status. Once open it can be read whether the worker runs, hangs, or has been killed since."""

    def __init__(self, target: Target) -> None:
        """Raises `Silent`."""
        try:
            self._fd = _open_memory(target.folder / f"{target.rank}.status")
        except OSError:
            raise Silent("it shows no status (yet)") from None

    def read(self) -> dict[str, Any]:
        """Where it is. Raises `Silent`."""
        for _ in range(_LOOKS):
            # The moments only: the longer the two looks take the more is written between them.
            first = os.pread(self._fd, worker_status.MOMENTS, 0)
            later = os.pread(self._fd, worker_status.MOMENTS, 0)
            found = worker_status.newest(first)
            if found is not None and worker_status.same(found, later):
                story = worker_status.story(os.pread(self._fd, worker_status.SIZE, 0))
                return worker_status.tell(found[1], story, time.monotonic(), time.time())
            time.sleep(_AGAIN)
        raise Silent("its status can't be read")

    def close(self) -> None:
        os.close(self._fd)


def _open_memory(path: Path) -> int:
    """Never waits, whatever lies there."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is no file")
    return fd


def status(target: Target) -> dict[str, Any]:
    """Where it is. Raises `Silent`."""
    view = View(target)
    try:
        return view.read()
    finally:
        view.close()


def goes_on(target: Target) -> bool:
    """It is neither dead nor stopped."""
    return process_tree.state(target.pid) not in (*STOPPED, *_DEAD)


def ask(target: Target, word: str, seconds: float) -> bytes:
    """What it answers, whole. Raises `Silent`."""
    deadline = time.monotonic() + seconds
    if not goes_on(target):
        raise Silent(f"{word}: it can't answer")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            _hurry(connection, deadline)
            _connect(connection, target)
            connection.sendall(f"{word}\n".encode())
            (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, deadline))
            most = _LIMITS[word.split()[0]]
            if length > most:
                raise Silent(f"{word}: its answer is longer than {most} bytes")
            return _receive(connection, length, deadline)
    except FileNotFoundError:
        raise Silent(f"{word}: it takes no questions (yet, or any more)") from None
    except TimeoutError:
        raise Silent(f"{word}: it did not answer within {seconds:g} s") from None
    except OSError as e:
        raise Silent(f"{word}: its socket fails: {e}") from None


def _connect(connection: socket.socket, target: Target) -> None:
    """By a short path, whatever the folder's length: the kernel has 107 bytes for it."""
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
    """Only what is left of the time for the next read."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def stacks_by_signal(target: Target, said: dict[str, Any]) -> bytes:
    """Python stacks of a process in which a thread holds Python's lock and sleeps; b"": they can't be had.

    Only while each of its threads sleeps: what writes them reads the others' frames, which must not change meanwhile.
    The signal goes to one thread, that has ended when Python ends, and a process without it ignores such a signal.
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
    except (OSError, Silent):
        return b""
    finally:
        os.close(fd)


def _sleeps(pid: int) -> bool:
    """Whether no thread of it runs, or wants to, for a while. (Those that wait for Python's lock look up now and then.)"""
    before = _used(pid)
    time.sleep(_ASLEEP)
    after = _used(pid)
    return bool(after) and all(
        state == "S" and ticks - before.get(task, ("", 0))[1] <= 1 for task, (state, ticks) in after.items()
    )


def _used(pid: int) -> dict[str, tuple[str, int]]:
    """Of each thread, its state and the processor time it has used, in hundredths of a second."""
    used = {}
    try:
        for task in os.listdir(f"/proc/{pid}/task")[:_THREADS]:
            words = _read(f"/proc/{pid}/task/{task}/stat").rpartition(")")[2].split()
            used[task] = (words[0], int(words[11]) + int(words[12]))
    except (OSError, ValueError, IndexError):
        return {}
    return used


def why_silent(pid: int) -> str:
    """Half a sentence about a process that doesn't answer."""
    state = process_tree.state(pid)
    if state in STOPPED:
        return "it is stopped (a signal or a debugger)"
    if state in _DEAD:
        return "it is dead"
    if state == "D":
        return "it waits for a device or a disk, and no signal reaches it"
    return "it runs, but no thread of it gets to answer: does one hold Python's lock?"


def kernel_view(pid: int) -> str:
    """State, name and place in the kernel of every thread, as far as /proc may be read; a line each."""
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
