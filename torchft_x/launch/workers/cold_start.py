"""Starts a cold attempt's workers: children of the supervisor, with the environment that torchrun would give them.

torchrun itself is not used (decision 31): its rendezvous listens on all interfaces and unpickles data from any sender.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from torchft_x.launch.process.environment import Rendezvous, error_file, worker_environment
from torchft_x.launch.process.group_store import SHIM, GroupStore, loopback
from torchft_x.launch.workers.attempt_spec import AttemptSpec
from torchft_x.net import parse_address


def open_store(spec: AttemptSpec, log: Path, fork: Callable[[GroupStore], int | None]) -> GroupStore | None:
    """Return the group's store if this node serves it, else None. A program that is no worker has none.

    `fork` is passed to `GroupStore`.
    """
    listener = spec.listener
    if listener is None and spec.nodes == 1 and not spec.program:
        listener = loopback()
    return None if listener is None else GroupStore(listener, spec.env, log, fork)


def rendezvous(spec: AttemptSpec, store: GroupStore | None) -> Rendezvous | None:
    """Return the rendezvous of this node's workers, or None for a program. Make the folders for the workers' error files."""
    if spec.program:
        return None
    assert spec.meeting or store is not None, "a group on one node has a store of its own"
    at = parse_address(spec.meeting) if store is None or spec.meeting else store.address
    for rank in range(spec.workers):
        error_file(spec.folder, rank).parent.mkdir(parents=True)
    return Rendezvous(
        name=spec.name,
        host=at.host,
        port=at.port,
        workers=spec.workers,
        folder=str(spec.folder),
        node=spec.node,
        nodes=spec.nodes,
    )


def start_workers(spec: AttemptSpec, meet: Rendezvous | None) -> list[int]:
    """Start the workers of this node, and return their pids by local rank."""
    if meet is None:
        return [_start(spec, 0, spec.env)]
    return [_start(spec, rank, worker_environment(spec.env, meet, rank)) for rank in range(spec.workers)]


def _start(spec: AttemptSpec, rank: int, environ: dict[str, str]) -> int:
    kind = "program" if spec.program else "worker"
    shim = [sys.executable, "-S", SHIM, kind, str(os.getpid()), str(rank), str(spec.folder)]  # -S: skip site-packages
    process = subprocess.Popen([*shim, *spec.command], env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
    process.returncode = 0  # collected by the supervisor (process_tree.reap), not by Popen
    return process.pid
