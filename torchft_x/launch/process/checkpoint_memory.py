"""Memory for the newest states of a group's workers on this host. The supervisor holds it, so it outlives the workers.

Each worker has two slots (`torchft_x.transfer.memory_slots` describes their content). They are files without a path
(memfd): they take no memory until a worker writes, and are gone with the supervisor. A worker opens them through /proc,
where the kernel checks that it has the same user.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from torchft_x.core import memory_slot
from torchft_x.core.training.memory_checkpoint import newest_common
from torchft_x.core.types import State

MEMORY = 0.2
"""Default fraction of the host's memory that copies may take, from 0 to 1."""
_MOST = 1 << 30  # bytes; larger than any manifest
_SLOTS = 2  # slots per worker, so that one is complete while the other is written


class CheckpointMemory:
    """Slots of one supervisor's workers. Raises `OSError` or `AttributeError` if the system has no memfd or descriptor left."""

    def __init__(self, workers: int) -> None:
        self._fds: list[int] = []
        names: list[str] = []
        try:
            for _ in range(workers * _SLOTS):
                tag = secrets.token_hex(16)
                fd = os.memfd_create(f"torchft_x-held-{tag}", os.MFD_CLOEXEC)
                self._fds.append(fd)
                os.fchmod(fd, 0o600)
                names.append(f"{os.getpid()}/{fd}/{tag}")
        except BaseException:
            self.close()
            raise
        self.names = [names[i : i + _SLOTS] for i in range(0, len(names), _SLOTS)]  # by local rank

    def setting(self, limit: int) -> str:
        """Return the setting for the workers: `limit` in bytes per slot, then the names of each worker's slots."""
        return ";".join([str(limit), *(",".join(names) for names in self.names)])

    def newest(self) -> State:
        """Return the newest state of which all workers hold a complete copy, or step 0 if there is none.

        No worker may be running.
        """
        states = [*map(_state, self._fds)]
        workers = [states[i : i + _SLOTS] for i in range(0, len(states), _SLOTS)]
        return newest_common([[s for s in worker if s is not None] for worker in workers]) or State()

    def close(self) -> None:
        """Free the memory. A worker that has a slot open keeps that slot."""
        for fd in self._fds:
            os.close(fd)
        self._fds = []


def _state(fd: int) -> State | None:
    """Return the state of the complete copy in a slot, or None. The data is verified later, by the process that loads it."""
    try:
        head = memory_slot.read(os.pread(fd, memory_slot.MANIFEST_AT, 0), _MOST)
        if head is None or head.guarded + head.data > os.fstat(fd).st_size:
            return None
        return head.state if memory_slot.is_sealed(os.pread(fd, head.guarded, 0), head) else None
    except (OSError, MemoryError):
        return None


def limit_of_slot(memory: int, share: float, workers: int) -> int:
    """Return the largest size of a slot in bytes, if so many workers share the fraction `share` of the host's `memory`."""
    return int(memory * share) // (workers * _SLOTS)


def memory_of_host(root: Path = Path("/")) -> int:
    """Return the bytes of memory available to processes here: the machine's, or the limit of their control groups if lower."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return found[0]
    for line in lines:
        _, kinds, path = line.split(":", 2)
        top, name = root / "sys/fs/cgroup", "memory.max"
        if kinds:  # version 1
            if "memory" not in kinds.split(","):
                continue
            top, name = top / "memory", "memory.limit_in_bytes"
        folder = top / path.lstrip("/")
        while True:  # a container sees its own control group as the top, even if the path differs
            found.append(_limit(folder / name))
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent
    return min(n for n in found if n)


def _limit(path: Path) -> int:
    """Return the limit in this file in bytes, or 0 if none is set."""
    try:
        text = path.read_text("utf-8").strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
