"""A cold life's workers: new processes, children of the supervisor, each in the environment that torchrun would give it.

torchrun itself is not used (decision 31): its rendezvous listens on all interfaces and unpickles what anybody writes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchft_x.launch.process.environment import Rendezvous, error_file, worker_environment
from torchft_x.launch.process.group_store import SHIM, GroupStore, loopback
from torchft_x.net import Address, parse_address

if TYPE_CHECKING:
    from torchft_x.launch.workers.attempt import AttemptSpec


def open_store(spec: AttemptSpec, log: Path) -> GroupStore | None:
    """The group's store, where this node serves it; a program that is no worker has none."""
    listener = spec.listener
    if listener is None and spec.nodes == 1 and not spec.program:
        listener = loopback()
    return None if listener is None else GroupStore(listener, spec.env, log)


def start_workers(spec: AttemptSpec, store: GroupStore | None) -> list[int]:
    """Their pids, by local rank."""
    if spec.program:
        return [_start(spec, 0, spec.env)]
    at = parse_address(spec.meeting) if spec.meeting else _address(store)
    meet = Rendezvous(
        name=spec.name,
        host=at.host,
        port=at.port,
        workers=spec.workers,
        folder=str(spec.folder),
        node=spec.node,
        nodes=spec.nodes,
    )
    pids = []
    for rank in range(spec.workers):
        error_file(spec.folder, rank).parent.mkdir(parents=True)
        pids.append(_start(spec, rank, worker_environment(spec.env, meet, rank)))
    return pids


def _address(store: GroupStore | None) -> Address:
    assert store is not None, "a group on one node has a store of its own"
    return store.address


def _start(spec: AttemptSpec, rank: int, environ: dict[str, str]) -> int:
    kind = "program" if spec.program else "worker"
    shim = [sys.executable, "-S", SHIM, kind, str(os.getpid()), str(rank), str(spec.folder)]  # -S: nothing installed
    process = subprocess.Popen([*shim, *spec.command], env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
    process.returncode = 0  # collected by the supervisor (tree.reap), not by Popen
    return process.pid
