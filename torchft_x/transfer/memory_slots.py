"""Copies of a state in memory that outlives the process: this one's supervisor holds it, and hands it to each life.

A *slot* is such memory, with room for one state. It has no path and no listener; a process opens it by a name that its own
supervisor gave it. Layout, all integers little-endian::

    0     seal      16 bytes: SEAL and crc32 of all from 16 to `data`; anything else: what follows is not complete
    16    head      format, state (step, committed_in), and the sizes of the three parts that follow
    4096  manifest  as it is sent in a heal (format/layout.py)
          digests   one of each block (format/blocks.py), 4 bytes
          data      from the next page on: the stream of the blobs

Whoever writes breaks the seal first and makes the new one last, so a writer that is killed leaves no slot that seems whole.
What is read is checked against the seal, the digests, and all that a manifest from a network is checked against.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import re
import struct
import zlib
from typing import Any

import torch
from torch import Tensor

from torchft_x.core.types import State
from torchft_x.errors import TransferError
from torchft_x.transfer.format.blocks import Block, cut_blocks, place_blobs
from torchft_x.transfer.format.digests import digest
from torchft_x.transfer.format.flatten import flatten
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.layout import Layout, dump, parse
from torchft_x.transfer.format.limits import MAX_MANIFEST_BYTES
from torchft_x.transfer.format.memory import available_memory, memory_of, populate
from torchft_x.transfer.format.rebuild import find_targets, first_part, rebuild
from torchft_x.transfer.shared_memory import Buffer, held_file_name, open_memfd
from torchft_x.transfer.snapshot import copy_to_host

log = logging.getLogger(__name__)

FORMAT = 2
_SEAL = b"torchft_x held"
_MARK = struct.Struct("<12xI")  # crc32 behind the seal's first 12 bytes
_HEAD = struct.Struct("<QqqQQQ")  # format, step, committed_in, bytes of: manifest, digests, data
_HEAD_AT, _MANIFEST_AT = 16, 4096
_SPARE = 0.05  # part of what is needed that is taken on top, as a manifest grows by some numbers
_NAME = re.compile(r"(\d{1,10})/(\d{1,10})/([0-9a-f]{32})")


class TooLarge(TransferError):
    """A state that has no room in a slot. The sentence says how large both are."""


class MemorySlot:
    """One slot. One thread at a time.

    Args:
        fd: of the memory, open for reading and writing; ours if nothing is raised.
        limit: most bytes that it may take.
        name: by which processes of this host find it; None: they don't.
    """

    def __init__(self, fd: int, limit: int, name: str | None = None) -> None:
        self._fd = fd
        self._limit = limit
        self._name = name
        self._memory: Tensor | None = None  # uint8, all of it; None: it is empty
        self._written: tuple[Block, ...] = ()  # by `write`, for `seal`
        self._map(os.fstat(fd).st_size)

    def __repr__(self) -> str:
        return f"<MemorySlot {self.state or 'empty'}, {self._size} bytes>"

    @staticmethod
    def open(name: str, limit: int) -> MemorySlot | None:
        """The slot that a supervisor calls `name` (PID/FD/TAG); None if there is none on this host that this process may use, or
        another process uses it. Never opens anything else."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        fd = open_memfd(match[1], match[2], held_file_name(match[3]), os.O_RDWR)
        if fd is None:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process has ended
            return MemorySlot(fd, limit, name)
        except (OSError, ValueError) as e:
            log.debug("no memory %s: %s", name, e)
        os.close(fd)
        return None

    def close(self) -> None:
        """Let go of it. What it holds stays."""
        self._memory = None
        os.close(self._fd)

    # --- what it holds -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State | None:
        """Of the complete copy in it; None: there is none."""
        sizes = self._sealed()
        return None if sizes is None else sizes[0]

    def read(self, into: Any = None) -> Any:
        """The state dict in it, in the tensors of `into` where path, dtype and shape fit, else in new ones.

        Raises `TransferError` if there is no complete copy, or a bit of it has changed since; its `torn` says whether tensors
        of `into` were already written to.
        """
        layout, stream = self._checked()
        return _land(layout, stream, into)

    def read_first(self, key: str) -> Any:
        """What stands under the state dict's first key, if that is `key`, in new tensors; else None. What stands behind it may
        be anything: types that only the script knows, shards that only its ranks can take. Raises `TransferError`.
        """
        layout, stream = self._checked()
        part = first_part(layout, key)
        return None if part is None else _land(part, stream, None)

    # --- writing -------------------------------------------------------------------------------------------------------

    def room_for(self, state_dict: Any) -> int:
        """Bytes that are missing for a copy of such a state; 0: it has room. Raises `LeafError`, `TooLarge`."""
        layout, _ = flatten(state_dict)
        needed = _needed(len(dump(layout)), len(cut_blocks(layout.blobs)), place_blobs(layout.blobs)[1])
        return max(0, needed - self._size)

    def grow(self, missing: int) -> None:
        """Take so many bytes more from the system, which takes a while. What it holds stays. Raises `TooLarge`, OSError."""
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
        """Copy a state, without the seal. When it returns, the state dict may change. False: there is no room, see `grow`.

        Raises `LeafError`; what the slot held is then still there.
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
        _HEAD.pack_into(memory, _HEAD_AT, FORMAT, state.step, state.committed_in, len(manifest), digests, length)
        memory[_MANIFEST_AT : _MANIFEST_AT + len(manifest)] = manifest
        copy_to_host(sources, starts, self._stream(len(manifest), digests, length))
        return True

    def seal(self) -> None:
        """Say that what `write` has copied is complete."""
        memory = self._bytes()
        _, _, _, manifest, digests, data = _HEAD.unpack_from(memory, _HEAD_AT)
        stream = self._stream(manifest, digests, data)
        values = [digest(stream[b.start : b.start + b.nbytes]) for b in self._written]
        struct.pack_into(f"<{len(values)}I", memory, _MANIFEST_AT + manifest, *values)
        _MARK.pack_into(memory, 0, zlib.crc32(memory[_HEAD_AT : _MANIFEST_AT + manifest + digests]))
        memory[:12] = _SEAL[:12]

    def may_take(self, nbytes: int) -> bool:
        """Whether the limit allows so many bytes of data."""
        return _MANIFEST_AT + nbytes <= self._limit

    def lend(self, nbytes: int) -> Buffer | None:
        """So much of its memory, for anything else; it holds nothing then, and is not to be written until that is over. None:
        there is no room."""
        if _MANIFEST_AT + nbytes > self._size:
            return None
        self.erase()
        assert self._memory is not None
        data = self._memory[_MANIFEST_AT : _MANIFEST_AT + nbytes]
        return Buffer(data, None if self._name is None else f"{self._name}/{_MANIFEST_AT}", lent=True)

    def erase(self) -> None:
        """From now on it holds nothing."""
        if self._size:
            self._bytes()[:_HEAD_AT] = bytes(_HEAD_AT)

    # --- inside --------------------------------------------------------------------------------------------------------

    def _checked(self) -> tuple[Layout, Tensor]:
        """Layout and stream of a complete copy, of which no bit has changed. Raises `TransferError`."""
        sealed = self._sealed()
        if sealed is None:
            raise TransferError("the memory holds no complete state.")
        _, manifest, digests, data = sealed
        layout = parse(self._bytes()[_MANIFEST_AT : _MANIFEST_AT + manifest].tobytes())
        blocks = cut_blocks(layout.blobs)
        if 4 * len(blocks) != digests or place_blobs(layout.blobs)[1] != data:
            raise TransferError("the memory holds a state whose manifest and bytes are of different sizes.")
        stream = self._stream(manifest, digests, data)
        expected = struct.unpack_from(f"<{len(blocks)}I", self._bytes(), _MANIFEST_AT + manifest)
        for index, block in enumerate(blocks):
            if digest(stream[block.start : block.start + block.nbytes]) != expected[index]:
                raise TransferError(f"block {index} of the state in memory has changed since it was copied.")
        return layout, stream

    @property
    def _size(self) -> int:
        return 0 if self._memory is None else self._memory.numel()

    def _map(self, size: int) -> None:
        if size >= _MANIFEST_AT:
            self._memory = torch.frombuffer(mmap.mmap(self._fd, size), dtype=torch.uint8)

    def _bytes(self) -> memoryview:
        assert self._memory is not None, "it is empty"
        return memory_of(self._memory)

    def _stream(self, manifest: int, digests: int, data: int) -> Tensor:
        assert self._memory is not None, "it is empty"
        start = _data_at(manifest, digests)
        return self._memory[start : start + data]

    def _sealed(self) -> tuple[State, int, int, int] | None:
        """State and the sizes of the three parts, if the seal is good."""
        if not self._size:
            return None
        memory = self._bytes()
        form, step, committed_in, manifest, digests, data = _HEAD.unpack_from(memory, _HEAD_AT)
        if memory[:12] != _SEAL[:12] or form != FORMAT or manifest > MAX_MANIFEST_BYTES or digests % 4:
            return None
        if max(digests, data) > self._size or _data_at(manifest, digests) + data > self._size:
            return None
        if _MARK.unpack_from(memory, 0)[0] != zlib.crc32(memory[_HEAD_AT : _MANIFEST_AT + manifest + digests]):
            return None
        return State(step, committed_in), manifest, digests, data


def _land(layout: Layout, stream: Tensor, into: Any) -> Any:
    targets = find_targets(layout, into)
    landing = Landing(layout, targets)
    try:
        with torch.no_grad():
            for block in cut_blocks(layout.blobs):
                for p in block.pieces:
                    start = block.start + p.block_offset
                    arrived = stream[start : start + p.nbytes]
                    landing.memory[p.blob][p.blob_offset : p.blob_offset + p.nbytes].copy_(arrived)
        return rebuild(layout, targets, landing.finish())
    except TransferError as e:
        e.torn = True
        raise


def _data_at(manifest: int, digests: int) -> int:
    """Where the stream begins: on a page, so that every tensor in it is aligned."""
    return -(-(_MANIFEST_AT + manifest + digests) // mmap.PAGESIZE) * mmap.PAGESIZE


def _needed(manifest: int, blocks: int, data: int) -> int:
    return _data_at(manifest, 4 * blocks) + data
