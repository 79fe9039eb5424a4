"""Small services about processes of this host."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path


def is_worker(pid: int, script: Path) -> bool:
    """Whether the process is a worker with this script: it speaks to its supervisor, as neither the warm parent does, whose command
    line a forked one shows, nor the process with the group's store."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return (
            os.fsencode(script) in words
            and re.fullmatch(r"\d+\.out", Path(os.readlink(f"/proc/{pid}/fd/1")).name) is not None
        )
    except OSError:
        return False


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal: it would die of it otherwise."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
