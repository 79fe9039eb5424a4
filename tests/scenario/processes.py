"""Small services about processes of this host."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def runs(pid: int, script: Path) -> bool:
    """Whether the process is Python with this script (and not torchrun, whose arguments name the script, too)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[2:3] == [os.fsencode(script)]
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
