"""Frozen copies of a state dict, and the readers that may read them.

A snapshot is immutable once it is published, so its readers never block the training thread. Its memory is reused
once it has no readers: usually one buffer is enough, and a slow reader makes it two.
"""

from __future__ import annotations

import ctypes
import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchft_x.core.types import State
from torchft_x.errors import ConfigError
from torchft_x.transfer.format.blocks import cut_blocks, digest, place_blobs
from torchft_x.transfer.format.flatten import flatten
from torchft_x.transfer.format.layout import Layout, dump
from torchft_x.transfer.format.limits import SMALL_BLOB_BYTES
from torchft_x.transfer.format.memory import memory_of, populate
from torchft_x.transfer.shared_memory import Buffer, allocate_buffer

log = logging.getLogger(__name__)

STANDING_BUFFERS = 2  # buffers kept for the next snapshot; more exist only while readers are slow
MAX_ALIVE = 4  # snapshots in memory; before one more is made, the readers of the oldest are cut off
CUT_GRACE = 5.0  # seconds that a snapshot stays readable for a reader whose connection broke


class Lender(Protocol):
    """Owner of memory that it lends for a snapshot, so that the snapshot allocates none."""

    def lends(self, nbytes: int) -> bool:
        """Return whether it can usually lend `nbytes`. May be called at any time."""

    def lend(self, nbytes: int, returned: Callable[[], bool]) -> Buffer | None:
        """Lend memory for a snapshot until `returned`, called at any time, returns True. None if it can't lend now."""


class Refusal(NamedTuple):
    """Refusal of a reader: its reason, and whether asking again is useless."""

    reason: str
    final: bool


class Snapshot:
    """Frozen bytes of one state. Readable from any thread while it is held."""

    def __init__(self, state: State, layout: Layout, memory: Buffer) -> None:
        self.id = secrets.token_hex(8)  # names exactly these bytes; two snapshots of one state have different ids
        self.state = state
        self.manifest = dump(layout)
        self.blocks = cut_blocks(layout.blobs)
        self.memory = memory
        self.buffer = memory.data  # at least as long as the stream
        self._bytes = memory_of(self.buffer)
        self._digests: list[int | None] = [None] * len(self.blocks)  # computed on first use
        self.revoked = False  # set once: readers stop at the next block
        # The fields below belong to SnapshotStore and are guarded by its lock.
        self.readers = 0  # connections that hold it
        self.owed = 0  # destinations that were promised this state and haven't begun to read it
        self.held_until = 0.0  # monotonic; until then a reader that was cut off may come back

    def block(self, index: int) -> memoryview:
        block = self.blocks[index]
        return self._bytes[block.start : block.start + block.nbytes]

    def digest(self, index: int) -> int:
        value = self._digests[index]
        if value is None:
            value = self._digests[index] = digest(self.block(index))
        return value


class SnapshotStore:
    """The snapshots of one transport. No method waits for a reader, except `ask` and `close`, with a time limit."""

    def __init__(self, *, shared: bool = True) -> None:
        self._shared = shared  # whether processes of this host may read the snapshots' memory directly
        self.lender: Lender | None = None  # set once, before the first snapshot
        self._changed = threading.Condition()  # guards everything below; never held during a copy or I/O
        self._alive: list[Snapshot] = []  # readable snapshots, oldest first
        self._current: Snapshot | None = None  # the newest
        self._allowed = False  # whether new readers may begin to read the current one
        self._spare: list[Buffer] = []  # buffers without readers
        self._lent: Snapshot | None = None  # the snapshot in lent memory
        self._closed = False
        self._signs = 0  # progress of readers; a lost count among several threads does no harm

    def moved(self) -> None:
        """Count a sign of progress: a reader has sent a request, or has taken a piece."""
        self._signs += 1

    def progress(self) -> tuple[int, bool]:
        """Return a number that grows as readers progress, and whether the newest snapshot has no reader left."""
        with self._changed:
            current = self._current
            done = current is None or not (current.owed or current.readers)
            return self._signs, done

    def freeze(self, state: State, state_dict: Any, owed: int, *, least: int = 0) -> Snapshot | None:
        """Copy a state dict and publish it as the newest snapshot. Earlier snapshots only serve readers in progress.

        Returns None, and does nothing, if its tensors have less than `least` bytes. Raises `LeafError` before
        anything is changed.
        """
        layout, sources = flatten(state_dict)
        if sum(layout.blobs) < least:
            return None
        starts, length = place_blobs(layout.blobs)
        memory = self._reserve(length, on_accelerator(sources))
        copy_to_host(sources, starts, memory.data)
        snapshot = Snapshot(state, layout, memory)
        snapshot.owed = owed
        with self._changed:
            if not self._closed:
                self._alive.append(snapshot)
                self._current, self._allowed = snapshot, True
                self._lent = snapshot if memory.lent else self._lent
            self._changed.notify_all()
        return snapshot

    def prepare(self, state_dict: Any) -> None:
        """Allocate and touch memory for the next snapshot of such a state, in the background. Raises `LeafError`.

        Memory that was never touched takes several times as long to write, and others wait while a snapshot is taken.
        """
        layout, sources = flatten(state_dict)
        length, pinned = max(place_blobs(layout.blobs)[1], 1), on_accelerator(sources)
        if self._may_borrow(length, pinned):
            return
        threading.Thread(target=self._make, args=(length, pinned), name="checkpoint-memory", daemon=True).start()

    def _make(self, length: int, pinned: bool) -> None:
        """Make a spare buffer, unless there is one. Never raises: if there is no memory, the first heal reports it."""
        with self._changed:
            buffers = [*self._spare, *(s.memory for s in self._alive)]
            if self._closed or any(serves(b.data, length, pinned) for b in buffers):
                return
        try:
            buffer = allocate_buffer(length, pinned=pinned, shared=self._shared)
            if not populate(buffer.data):
                buffer.data.zero_()
        except RuntimeError as e:
            log.warning("no memory for a copy of the state (%d bytes), which a group that joins needs: %s", length, e)
            return
        with self._changed:
            if not self._closed:
                self._spare = [buffer]

    def _may_borrow(self, length: int, pinned: bool) -> bool:
        return self._shared and not pinned and self.lender is not None and self.lender.lends(length)

    def returns(self) -> bool:
        """Give lent memory back unless readers use it or may come. Return whether none is lent any more. Any thread."""
        with self._changed:
            snapshot = self._lent
            if snapshot is None:
                return True
            is_current = snapshot is self._current
            if snapshot.readers or snapshot.held_until > time.monotonic() or (is_current and self._allowed):
                return False
            snapshot.revoked = True
            self._lent = None
            if snapshot in self._alive:
                self._alive.remove(snapshot)
            if is_current:
                self._current = None
            return True

    def _reserve(self, length: int, pinned: bool) -> Buffer:
        """Return a buffer without readers: a lent one, or a used one of the right kind, or a new one."""
        length = max(length, 1)
        with self._changed:
            self._current, self._allowed = None, False
            self._collect()
        if self._may_borrow(length, pinned):
            assert self.lender is not None
            lent = self.lender.lend(length, self.returns)
            if lent is not None:
                return lent
        with self._changed:
            for oldest in self._alive[: max(len(self._alive) - MAX_ALIVE + 1, 0)]:
                oldest.revoked = True  # its memory is freed when its readers notice
                self._alive.remove(oldest)
            self._spare = [b for b in self._spare if serves(b.data, length, pinned)]
            if not self._spare and len(self._alive) >= STANDING_BUFFERS:
                self._give_up_unread(length, pinned)
            self._spare.sort(key=lambda buffer: buffer.data.numel())
            buffer = self._spare.pop(0) if self._spare else None
        if buffer is None:
            buffer = allocate_buffer(length, pinned=pinned, shared=self._shared)
            populate(buffer.data)
        return buffer

    def _give_up_unread(self, length: int, pinned: bool) -> None:
        """Take the buffer of the oldest snapshot without readers, kept for one that was cut off. Lock held.

        New memory would cost the training thread several times the copy.
        """
        for snapshot in self._alive:
            if snapshot.readers == 0 and not snapshot.memory.lent and serves(snapshot.buffer, length, pinned):
                self._alive.remove(snapshot)
                snapshot.revoked = True
                self._spare.append(snapshot.memory)
                return

    def _collect(self) -> None:
        """Move the buffers of snapshots that no reader can want any more to the spare ones. Lock held."""
        now = time.monotonic()
        for snapshot in list(self._alive):
            if snapshot is not self._current and snapshot.readers == 0 and snapshot.held_until <= now:
                self._alive.remove(snapshot)
                snapshot.revoked = True  # a later request by id is refused
                if not snapshot.memory.lent:
                    self._spare.append(snapshot.memory)
        del self._spare[max(STANDING_BUFFERS - len(self._alive), 0) :]

    def disallow(self) -> None:
        """Stop offering the newest snapshot, except to readers in progress and destinations that were promised it.

        The promised ones may still read, because the bytes are frozen: a source that commits faster than a healer
        asks must not make it wait for nothing (shared facts, peer 2.4).
        """
        with self._changed:
            self._allowed = False
            if self._current is not None and self._current.owed and self._current.memory.lent:  # it is lent
                self._current.held_until = time.monotonic() + CUT_GRACE
            self._collect()

    def allow(self, step: int) -> None:
        """Offer the newest snapshot to all readers again. Raises `ConfigError` if it is not of `step`."""
        with self._changed:
            if self._current is None or self._current.state.step != step:
                held = "none" if self._current is None else f"one of {self._current.state}"
                raise ConfigError(
                    f"allow_checkpoint({step}): the newest snapshot is {held}; call send_checkpoint first."
                )
            self._allowed = True
            self._changed.notify_all()

    def ask(self, state: State, wait: float) -> Snapshot | Refusal:
        """Begin to read the snapshot of `state`; wait up to `wait` seconds for it. The caller must `release` it."""
        deadline = time.monotonic() + wait
        with self._changed:
            while True:
                answer = self._answer(state)
                if isinstance(answer, Snapshot):
                    answer.readers += 1
                    answer.owed = max(answer.owed - 1, 0)
                    return answer
                left = deadline - time.monotonic()
                if answer.final or left <= 0:
                    return answer
                self._changed.wait(left)

    def _answer(self, state: State) -> Snapshot | Refusal:
        """Return the answer for a reader that asks for `state` now. Lock held."""
        if self._closed:
            return Refusal("it is shutting down", True)
        current = self._current
        if current is None:
            return Refusal("it has no state to offer yet", False)
        if current.state == state:
            return current if self._allowed or current.owed else Refusal(f"its {state} may not be read now", False)
        return Refusal(f"it offers {current.state}, not {state}", current.state > state)

    def resume(self, snapshot_id: str) -> Snapshot | None:
        """Continue to read a snapshot that was begun earlier, or on another connection. The caller must `release` it."""
        with self._changed:
            for snapshot in self._alive:
                if snapshot.id == snapshot_id and not (self._closed and not snapshot.readers):
                    snapshot.readers += 1
                    return snapshot
        return None

    def release(self, snapshot: Snapshot, *, cut: bool, began: bool = False) -> None:
        """End a connection's read. `cut`: it ended in the middle; `began`: it got the snapshot from `ask`."""
        with self._changed:
            snapshot.readers -= 1
            if cut:
                snapshot.held_until = time.monotonic() + CUT_GRACE
                snapshot.owed += began
            if snapshot is not self._current:
                self._collect()
            self._changed.notify_all()

    def close(self, wait: float) -> None:
        """Refuse new readers now. Wait at most `wait` seconds for the present ones, then drop all snapshots."""
        deadline = time.monotonic() + wait
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while any(s.readers for s in self._alive) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            for snapshot in self._alive:
                snapshot.revoked = True
            self._alive, self._spare, self._current, self._lent = [], [], None, None


def serves(memory: Tensor, length: int, pinned: bool) -> bool:
    """Return whether memory of an earlier copy does for one of `length` bytes."""
    return memory.numel() >= length and memory.is_pinned() is pinned


def on_accelerator(sources: list[Tensor]) -> bool:
    """Return whether a copy needs pinned memory."""
    return any(source.device.type != "cpu" for source in sources)


@torch.no_grad()
def copy_to_host(sources: list[Tensor], starts: list[int], buffer: Tensor) -> None:
    """Copy each blob's source to its place in `buffer` (uint8 on CPU, pinned if a source is on an accelerator).

    When it returns, the sources may be overwritten. From an accelerator it copies on a stream of its own, so that it
    waits for the state only and not for work queued later.
    """
    by_device: dict[torch.device, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    first = buffer.data_ptr()
    for source, start in zip(sources, starts, strict=True):
        nbytes = source.nbytes
        if nbytes < SMALL_BLOB_BYTES and source.is_cpu and source.is_contiguous():  # without views, which take longer
            ctypes.memmove(first + start, source.data_ptr(), nbytes)
            continue
        place = buffer[start : start + nbytes].view(source.dtype).view(source.shape)
        by_device[source.device][0].append(place)
        by_device[source.device][1].append(source)
    for device, (places, parts) in by_device.items():
        if device.type == "cpu":
            torch._foreach_copy_(places, parts)
            continue
        module = torch.get_device_module(device)
        stream = module.Stream(device)
        stream.wait_stream(module.current_stream(device))
        with module.stream(stream):
            torch._foreach_copy_(places, parts, non_blocking=True)
        stream.synchronize()
