"""One worker of our own, asked over its unix socket (train/worker_server.py); where it doesn't answer, what the kernel says.

Standard library only. Each question has a deadline for the whole of it and a limit of what is read.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchft_x.launch import tree
from torchft_x.launch.halts import STOPPED

STATUS, STACKS, RECORDER = "torchft_x", "dump_traceback", "fr_trace_json"
"""Handlers of a worker: ours, and two of torch's."""
_LIMITS = {STATUS: 1 << 16, STACKS: 1 << 20, RECORDER: 1 << 24}  # bytes; a full Flight Recorder (2,000) has 1 MB
_CHUNK = 1 << 16
_THREADS = 200  # of a process, described at most


class Silent(Exception):
    """It did not answer; the text says how."""


@dataclass(frozen=True)
class Target:
    """A worker process of this host."""

    rank: int  # in its group
    pid: int
    socket: Path


def ask(target: Target, handler: str, seconds: float) -> bytes:
    """What it answers, whole. Raises `Silent`."""
    deadline = time.monotonic() + seconds
    connection = _Connection(target.socket, deadline)
    try:
        connection.request("POST", f"/handler/{handler}", body=b"")
        response = connection.getresponse()
        if response.status != 200:
            raise Silent(f"{handler}: it answers {response.status}")
        data = b""
        while chunk := response.read1(_CHUNK):
            data += chunk
            if len(data) > _LIMITS[handler]:
                raise Silent(f"{handler}: its answer is longer than {_LIMITS[handler]} bytes")
            connection.hurry()
        return data
    except FileNotFoundError:
        raise Silent("it has no WorkerServer (yet)") from None
    except TimeoutError:
        raise Silent(f"it did not answer within {seconds:g} s") from None
    except (OSError, http.client.HTTPException) as e:
        raise Silent(f"its socket fails: {e}") from None
    finally:
        connection.close()


def status(target: Target, seconds: float) -> dict[str, Any]:
    """Where it is. Raises `Silent`."""
    try:
        value = json.loads(ask(target, STATUS, seconds))
    except ValueError:
        raise Silent("its status is no JSON") from None
    if not isinstance(value, dict) or not value:
        raise Silent("it says nothing about itself")
    return value


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket, until a deadline."""

    def __init__(self, path: Path, deadline: float) -> None:
        super().__init__("worker")
        self._path = path
        self._deadline = deadline  # monotonic

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.hurry()
        self.sock.connect(str(self._path))

    def hurry(self) -> None:
        """Only what is left of the time for the next read."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self.sock is not None:
            self.sock.settimeout(left)


def why_silent(pid: int) -> str:
    """Half a sentence about a process that doesn't answer."""
    state = tree.state(pid)
    if state in STOPPED:
        return "it is stopped (a signal or a debugger)"
    if state in ("", "Z", "X"):
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
