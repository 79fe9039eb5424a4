"""Memory that a process shares with one child: segments of a ``memfd``, which the size of /dev/shm does not limit.

A collective in a child process copies its inputs into a segment, and its results out of it. So the caller's tensors
stay where they are, and nothing writes to them after a failure. Only the collective's own part is copied: a small
view of a large storage costs its own size.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes, of each tensor in a segment: enough for any dtype
_SMALLEST = 1 << 20  # bytes of a segment, at least


class Place:
    """Place of a contiguous tensor in a segment."""

    def __init__(self, start: int, tensor: Tensor) -> None:
        self.start = start  # bytes
        self.end = start + -(-max(tensor.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        self._nbytes, self._dtype, self._shape = tensor.nbytes, tensor.dtype, tensor.shape

    def view(self, segment: Tensor) -> Tensor:
        return segment[self.start : self.start + self._nbytes].view(self._dtype).view(self._shape)


class Segment(NamedTuple):
    """A part of the memory, in the process that created it."""

    start: int  # bytes
    size: int  # bytes
    memory: Tensor  # uint8 (size,)


class SharedMemory:
    """The memory of one child. It grows on demand, and is released when the last tensor in it is."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("torchft_x", os.MFD_CLOEXEC)
        self._lock = threading.Lock()  # guards the fields below
        self._size = 0  # bytes of the file
        self._free: list[Segment] = []  # the last used segment is last: its pages are warm

    def __del__(self) -> None:
        os.close(self.fd)

    def take(self, nbytes: int) -> Segment:
        """Return a segment of at least `nbytes`, the caller's until `give_back`. Raises `OSError` if memory is full."""
        with self._lock:
            best = min((s for s in reversed(self._free) if nbytes <= s.size), key=lambda s: s.size, default=None)
            if best is not None:
                self._free.remove(best)
                return best
            step = max(_SMALLEST, (1 << nbytes.bit_length()) >> 3)  # so that segments fit tensors of similar sizes
            start, size = self._size, -(-nbytes // step) * step
            os.ftruncate(self.fd, start + size)
            self._size += size
        return Segment(start, size, map_segment(self.fd, start, size))

    def give_back(self, segment: Segment) -> None:
        """Make a segment free. Nobody may use it any more, the child included."""
        with self._lock:
            self._free.append(segment)


def map_segment(fd: int, start: int, size: int) -> Tensor:
    """Map a segment and return its memory, uint8 (size,). The mapping lives as long as the tensor."""
    return torch.frombuffer(mmap.mmap(fd, size, offset=start), dtype=torch.uint8)
