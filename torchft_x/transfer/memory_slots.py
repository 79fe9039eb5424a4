"""Copies of a state in memory that outlives the process: its supervisor holds it, and passes it to each attempt.

A *slot* is such memory, with room for one state. It has no path and no listener; a process opens it by a name that
its own supervisor gave it. Layout, all integers little-endian::

    0     seal, head      the state, and that the copy is complete (core/memory_slot.py)
    4096  manifest  as it is sent in a heal (format/layout.py)
          digests   one of each block (format/blocks.py), 4 bytes
          data      from the next page on: the stream of the blobs

A writer breaks the seal first and makes the new one last, so a writer that is killed leaves no slot that seems
complete. A reader checks the data against the seal and the digests, and the manifest like one from a network.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import re
import struct
from typing import Any

import torch
from torch import Tensor

from torchft_x.core import memory_slot
from torchft_x.core.memory_slot import MANIFEST_AT, SlotHead
from torchft_x.core.types import State
from torchft_x.errors import TransferError
from torchft_x.transfer.format.blocks import Block, cut_blocks, digest, place_blobs
from torchft_x.transfer.format.flatten import flatten
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.layout import Layout, dump, parse
from torchft_x.transfer.format.limits import MAX_MANIFEST_BYTES
from torchft_x.transfer.format.memory import available_memory, memory_of, populate
from torchft_x.transfer.format.rebuild import find_targets, rebuild
from torchft_x.transfer.shared_memory import Buffer, held_file_name, open_memfd
from torchft_x.transfer.snapshot import copy_to_host

log = logging.getLogger(__name__)

_SPARE = 0.05  # fraction of the missing bytes that is allocated in addition, as a manifest grows by some numbers
_NAME = re.compile(r"(\d{1,10})/(\d{1,10})/([0-9a-f]{32})")


_used: set[str | None] = set()  # names of the slots that this process has open


class TooLarge(TransferError):
    """Raised for a state that doesn't fit into a slot. The message gives both sizes."""


class MemorySlot:
    """One slot. Used by one thread at a time.

    Args:
        fd: descriptor of the memory, open for reading and writing; owned by this object unless the constructor
            raises.
        limit: most bytes that the slot may take.
        name: by which processes of this host find the slot; None: they can't.
    """

    def __init__(self, fd: int, limit: int, name: str | None = None) -> None:
        self._fd = fd
        self._limit = limit
        self._name = name
        self._memory: Tensor | None = None  # all of the slot, uint8; None: it is empty
        self._written: tuple[Block, ...] = ()  # blocks copied by `write`, for `seal`
        self._map(os.fstat(fd).st_size)

    @staticmethod
    def open(name: str, limit: int) -> MemorySlot | None:
        """Open the slot that a supervisor calls `name` (PID/FD/TAG). Never opens anything else.

        Returns None if this process may not use such a slot on this host, or if another process uses it.
        """
        match = _NAME.fullmatch(name)
        if match is None or name in _used:
            return None
        fd = open_memfd(match[1], match[2], held_file_name(match[3]), os.O_RDWR)
        if fd is None:
            return None
        try:
            # Held until this process ends. A lock of this kind is not inherited: a loader's worker may outlive us.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            slot = MemorySlot(fd, limit, name)
            _used.add(name)
            return slot
        except (OSError, ValueError) as e:
            log.debug("no memory %s: %s", name, e)
        os.close(fd)
        return None

    def close(self) -> None:
        """Close our descriptor. The slot's content stays."""
        self._memory = None
        os.close(self._fd)
        _used.discard(self._name)

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State | None:
        """State of the complete copy in the slot; None if there is none."""
        head = self._sealed()
        return None if head is None else head.state

    def read(self, into: Any = None) -> Any:
        """Return the slot's state dict, in the tensors of `into` where path, dtype and shape fit, else in new ones.

        Raises `TransferError` if there is no complete copy, or a bit of it has changed since; its `torn` says whether
        tensors of `into` were already written to.
        """
        layout, stream = self._checked()
        targets = find_targets(layout, into)
        landing = Landing(layout, targets)
        try:
            for block in cut_blocks(layout.blobs):
                landing.put(block, stream[block.start :])
            return rebuild(layout, targets, landing.finish())
        except TransferError as e:
            e.torn = True
            raise

    # --- writing -------------------------------------------------------------------------------------------------------

    def room_for(self, state_dict: Any) -> int:
        """Return the bytes missing for a copy of this state; 0 if it has room. Raises `LeafError`, `TooLarge`."""
        layout, _ = flatten(state_dict)
        needed = _needed(len(dump(layout)), len(cut_blocks(layout.blobs)), place_blobs(layout.blobs)[1])
        return max(0, needed - self._size)

    def grow(self, missing: int) -> None:
        """Enlarge the slot by at least `missing` bytes, slowly. Its content stays. Raises `TooLarge`, OSError."""
        size = self._size + int(missing * (1 + _SPARE))
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if size > self._limit:
            raise TooLarge(
                f"the state takes {size >> 20} MiB, and a copy of it in memory may take {self._limit >> 20} MiB."
            )
        if 2 * (size - self._size) > available_memory():
            raise TooLarge(
                f"a copy of it in memory takes {size >> 20} MiB, and {available_memory() >> 20} MiB are left."
            )
        os.ftruncate(self._fd, size)
        self._map(size)
        assert self._memory is not None
        populate(self._memory)

    def write(self, state: State, state_dict: Any) -> bool:
        """Copy a state, without the seal, and return True. Afterwards the state dict may change.

        Returns False if there is no room (see `grow`). Raises `LeafError`; the slot's old content is then still
        complete.
        """
        layout, sources = flatten(state_dict)
        manifest = dump(layout)
        starts, length = place_blobs(layout.blobs)
        blocks = cut_blocks(layout.blobs)
        if _needed(len(manifest), len(blocks), length) > self._size:
            return False
        self.erase()
        self._written, digests = blocks, 4 * len(blocks)
        memory = self._bytes()
        head = SlotHead(state, len(manifest), digests, length)
        head.write(memory)
        memory[MANIFEST_AT : MANIFEST_AT + len(manifest)] = manifest
        copy_to_host(sources, starts, self._stream(head))
        return True

    def seal(self) -> None:
        """Mark the copy that `write` has made as complete, with the digests of its blocks."""
        memory = self._bytes()
        head = memory_slot.read(memory, MAX_MANIFEST_BYTES)
        assert head is not None, "nothing was written"
        stream = self._stream(head)
        values = [digest(stream[b.start : b.start + b.nbytes]) for b in self._written]
        struct.pack_into(f"<{len(values)}I", memory, MANIFEST_AT + head.manifest, *values)
        memory_slot.seal(memory, head)

    def may_take(self, nbytes: int) -> bool:
        """Return whether the limit allows `nbytes` bytes of data."""
        return MANIFEST_AT + nbytes <= self._limit

    def lend(self, nbytes: int) -> Buffer | None:
        """Lend `nbytes` of the slot's memory for another use, which erases the slot; None if there is no room.

        The slot must not be written until the loan is over.
        """
        if MANIFEST_AT + nbytes > self._size:
            return None
        self.erase()
        assert self._memory is not None
        data = self._memory[MANIFEST_AT : MANIFEST_AT + nbytes]
        return Buffer(data, None if self._name is None else f"{self._name}/{MANIFEST_AT}", lent=True)

    def erase(self) -> None:
        """Break the seal: from now on the slot holds no copy."""
        if self._size:
            memory_slot.break_seal(self._bytes())

    # --- private ------------------------------------------------------------------------------------------------------

    def _checked(self) -> tuple[Layout, Tensor]:
        """Return layout and stream of a complete copy, after checking every digest. Raises `TransferError`."""
        head = self._sealed()
        if head is None:
            raise TransferError("the memory holds no complete state.")
        layout = parse(self._bytes()[MANIFEST_AT : MANIFEST_AT + head.manifest].tobytes())
        blocks = cut_blocks(layout.blobs)
        if 4 * len(blocks) != head.digests or place_blobs(layout.blobs)[1] != head.data:
            raise TransferError("the memory holds a state whose manifest and bytes are of different sizes.")
        stream = self._stream(head)
        expected = struct.unpack_from(f"<{len(blocks)}I", self._bytes(), MANIFEST_AT + head.manifest)
        for index, block in enumerate(blocks):
            if digest(stream[block.start : block.start + block.nbytes]) != expected[index]:
                raise TransferError(f"block {index} of the state in memory has changed since it was copied.")
        return layout, stream

    @property
    def _size(self) -> int:
        return 0 if self._memory is None else self._memory.numel()

    def _map(self, size: int) -> None:
        if size >= MANIFEST_AT:
            self._memory = torch.frombuffer(mmap.mmap(self._fd, size), dtype=torch.uint8)

    def _bytes(self) -> memoryview:
        assert self._memory is not None, "it is empty"
        return memory_of(self._memory)

    def _stream(self, head: SlotHead) -> Tensor:
        assert self._memory is not None, "it is empty"
        start = _data_at(head.manifest, head.digests)
        return self._memory[start : start + head.data]

    def _sealed(self) -> SlotHead | None:
        """Return the head of the slot if its seal is valid, otherwise None."""
        if not self._size:
            return None
        memory = self._bytes()
        head = memory_slot.read(memory, MAX_MANIFEST_BYTES)
        if head is None or max(head.digests, head.data) > self._size:
            return None
        if _data_at(head.manifest, head.digests) + head.data > self._size or not memory_slot.is_sealed(memory, head):
            return None
        return head


def _data_at(manifest: int, digests: int) -> int:
    """Return where the stream begins: on a page, so that every tensor in it is aligned."""
    return -(-(MANIFEST_AT + manifest + digests) // mmap.PAGESIZE) * mmap.PAGESIZE


def _needed(manifest: int, blocks: int, data: int) -> int:
    return _data_at(manifest, 4 * blocks) + data
