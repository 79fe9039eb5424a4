"""Read and write the head of a memory slot, which names the state of the copy and seals it when complete (decision 51).

All integers little-endian::

    0     seal      16 bytes: a mark, and crc32 of all from 16 to the data; anything else: the copy is not complete
    16    head      format, state (step, committed_in), and the sizes of the three parts that follow
    4096  manifest, digests, and from the next page on the data

Workers write the head (`transfer.memory_slots`); their supervisor, which has no torch, reads the state from it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from torchft_x.core.types import State

FORMAT = 2
MANIFEST_AT = 4096
_HEAD_AT = 16
_SEAL = b"torchft_x held"[:12]
_MARK = struct.Struct("<12sI")
_HEAD = struct.Struct("<QqqQQQ")


@dataclass(frozen=True, slots=True)
class SlotHead:
    """Head of one copy. Sizes are in bytes."""

    state: State
    manifest: int
    digests: int
    data: int

    @property
    def guarded(self) -> int:
        """End offset of the bytes that the seal guards, which begin at 16."""
        return MANIFEST_AT + self.manifest + self.digests

    def write(self, memory: memoryview) -> None:
        """Write the head into a slot whose seal is broken."""
        s = self.state
        _HEAD.pack_into(memory, _HEAD_AT, FORMAT, s.step, s.committed_in, self.manifest, self.digests, self.data)


def seal(memory: memoryview, head: SlotHead) -> None:
    """Mark the copy as complete. The mark is written last, so that a writer killed before leaves no seal."""
    crc = zlib.crc32(memory[_HEAD_AT : head.guarded])
    struct.pack_into("<I", memory, 12, crc)
    memory[:12] = _SEAL


def break_seal(memory: memoryview) -> None:
    memory[:_HEAD_AT] = bytes(_HEAD_AT)


def read(memory: bytes | memoryview, most: int) -> SlotHead | None:
    """Return the head of a slot, sealed or not; None: no copy. `most`: largest size of a manifest, bytes."""
    if len(memory) < MANIFEST_AT:
        return None
    form, step, committed_in, manifest, digests, data = _HEAD.unpack_from(memory, _HEAD_AT)
    if form != FORMAT or manifest > most or digests % 4:
        return None
    return SlotHead(State(step, committed_in), manifest, digests, data)


def is_sealed(memory: bytes | memoryview, head: SlotHead) -> bool:
    """Return whether the seal is intact. `memory`: the slot's first `head.guarded` bytes or more."""
    mark, crc = _MARK.unpack_from(memory, 0)
    return bool(mark == _SEAL and crc == zlib.crc32(memory[_HEAD_AT : head.guarded]))
