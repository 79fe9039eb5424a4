"""Memory that a process shares with its child: reusable segments of anonymous shared memory.

A collective in a child process copies its inputs into a segment, and its results out of it. So the caller's tensors
stay where they are, and nothing writes to them after a failure. Only the collective's own part is copied: a small
view of a large storage costs its own size. Segments are ``memfd``s, which are not limited by the size of
/dev/shm (64 MiB in many containers).
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes, of each tensor in a segment: enough for any dtype
_SMALLEST = 1 << 20  # bytes of a segment, at least
_LARGE_STEP = 32 << 20  # bytes; from here on sizes are rounded up to multiples of it instead of powers of two
_KEPT = 8  # free segments that are kept: as many buckets may be in flight without new memory

_numbers = itertools.count(1)


class Segment:
    """A piece of shared memory, in the process that created it."""

    def __init__(self, size: int) -> None:
        self.number = next(_numbers)  # its name in messages
        self.size = size  # bytes
        self.fd = os.memfd_create("torchft_x", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self.memory = map_segment(self.fd, size)  # uint8 (size,)

    def __del__(self) -> None:
        os.close(self.fd)


class SharedSegments:
    """Pool of segments, created on demand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards `_free`
        self._free: list[Segment] = []  # the last used segment is last: its pages are warm

    def take(self, nbytes: int) -> Segment:
        """Return a segment of at least `nbytes`, the caller's until `give_back`. Raises `OSError` if memory is full."""
        with self._lock:
            fitting = [s for s in self._free if nbytes <= s.size]
            if fitting:
                best = min(reversed(fitting), key=lambda s: s.size)
                self._free.remove(best)
                return best
        return Segment(_rounded(nbytes))

    def give_back(self, segment: Segment) -> None:
        """Return a segment to the pool. Nobody may use it any more, the child included."""
        with self._lock:
            self._free.append(segment)
            del self._free[:-_KEPT]


def map_segment(fd: int, size: int) -> Tensor:
    """Map a segment and return its memory, uint8 (size,). The mapping lives as long as the tensor."""
    return torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)


def place(tensors: Sequence[Tensor]) -> tuple[list[int], int]:
    """Return where each tensor starts in a segment that holds all of them, and the bytes that they need."""
    starts: list[int] = []
    end = 0
    for t in tensors:
        starts.append(end)
        end += -(-t.numel() * t.dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return starts, end


def view(memory: Tensor, start: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return a contiguous tensor in a segment, which starts at byte `start`."""
    count = 1
    for size in shape:
        count *= size
    return memory[start : start + count * dtype.itemsize].view(dtype).view(tuple(shape))


def _rounded(nbytes: int) -> int:
    if nbytes >= _LARGE_STEP:
        return -(-nbytes // _LARGE_STEP) * _LARGE_STEP
    return max(_SMALLEST, 1 << (nbytes - 1).bit_length())
