"""Command, environment and node of one attempt's workers."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class AttemptSpec:
    """Command, environment and node of an attempt to be started."""

    command: tuple[str, ...]
    """Script and arguments."""
    workers: int
    """Processes on this node."""
    env: dict[str, str] = field(repr=False)
    """Complete environment of the trainer."""
    folder: Path
    """Private, empty folder on a local disk, for pipes and error files."""
    run_dir: Path | None
    """Directory for logs. Its event files tell whether a step was committed."""
    name: str
    """Prefix of the log files, e.g. ``group-1-attempt-0``; the same on all nodes."""
    node: int = 0
    nodes: int = 1
    meeting: str = ""
    """host:port of the workers' store (MASTER_ADDR, MASTER_PORT), for a group over several nodes only."""
    listener: socket.socket | None = None
    """Listening socket of that store, on node 0 of several nodes only."""
    program: bool = False
    """Whether the command is any program, not a Python script. It is one process, without a rendezvous."""
    labels: Mapping[str, Any] | None = None
    """Labels of each output line, if lines are wanted as JSON."""

    def who(self, rank: int) -> str:
        """Return the name, for people, of the worker with that local rank."""
        return "the program" if self.program else f"worker {self.first_rank + rank}"

    @property
    def file_name(self) -> str:
        """`name`, made different on each node, because nodes may share the directory."""
        return self.name if self.nodes == 1 else f"{self.name}-node-{self.node}"

    @property
    def first_rank(self) -> int:
        """Group rank of this node's first worker."""
        return self.node * self.workers
