"""A lighthouse as a process, for trainers that TorchX does not start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.journeys.jobs import Job, running
from torchft_x.comm.store.create import host_store

_stores: list[object] = []  # keeps the stores serving as long as this process runs


@contextmanager
def lighthouse(folder: Path, *flags: str, min_replicas: int = 1, **variables: str) -> Iterator[str]:
    """Serve on a free port of the loopback until the block ends; yield the address."""
    file = folder / "address"
    words = ["--min_replicas", str(min_replicas), "--bind", "127.0.0.1:0", "--address_file", str(file), *flags]
    command = [sys.executable, "-m", "torchft_x", "lighthouse", *words]
    with running(command, folder / "lighthouse.log", folder / "run", **variables) as service:
        service.wait_for(file.exists, 20, "the lighthouse's address")
        yield file.read_text().strip()


@contextmanager
def trainer(folder: Path, name: str, command: list[str], **variables: str) -> Iterator[Job]:
    """Run the only rank of a group with a store of its own, as torchrun would."""
    store, at = host_store("127.0.0.1")
    _stores.append(store)
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(at.port)}
    with running(command, folder / f"{name}.log", folder / "run", cwd=folder, **variables) as job:
        yield job
