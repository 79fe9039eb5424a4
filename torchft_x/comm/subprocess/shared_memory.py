"""Memory that a process shares with its child: segments of anonymous shared memory, used again and again.

Collectives of a group in a child process go through it: what is sent is copied in, what was received is copied out. So
the caller's tensors stay where they are, only the part that a collective is about moves (a small view of a large
storage costs what it is), and nothing writes into them after a failure. Segments are ``memfd``s: not bounded by the size
of /dev/shm, which is 64 MiB in many containers.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT = 64  # of each tensor in a segment; any dtype may be viewed there
_SMALLEST = 1 << 20  # bytes of a segment
_LARGE_STEP = 32 << 20  # from here on sizes are rounded up to multiples of it instead of powers of two
_KEPT = 8  # free segments kept for later: as many buckets may be in flight without new memory

_numbers = itertools.count(1)


class Segment:
    """A piece of shared memory in the process that made it."""

    def __init__(self, size: int) -> None:
        self.number = next(_numbers)  # its name in messages
        self.size = size  # bytes
        self.fd = os.memfd_create("torchft_x", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self.memory = map_segment(self.fd, size)  # uint8 (size,)

    def __del__(self) -> None:
        os.close(self.fd)


class SharedSegments:
    """Segments by need."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards `_free`
        self._free: list[Segment] = []  # the one last used at the end: its pages are warm

    def take(self, nbytes: int) -> Segment:
        """A segment of at least `nbytes`, the caller's until `give_back`. Raises `OSError` if there is no memory."""
        with self._lock:
            fitting = [s for s in self._free if nbytes <= s.size]
            if fitting:
                best = min(reversed(fitting), key=lambda s: s.size)
                self._free.remove(best)
                return best
        return Segment(_rounded(nbytes))

    def give_back(self, segment: Segment) -> None:
        """Nobody else may use it any more, the child included."""
        with self._lock:
            self._free.append(segment)
            del self._free[:-_KEPT]


def map_segment(fd: int, size: int) -> Tensor:
    """A segment's memory, uint8 (size,); lives as long as the tensor."""
    return torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)


def place(tensors: Sequence[Tensor]) -> tuple[list[int], int]:
    """Where each tensor starts in a segment that holds all of them, and the bytes it needs."""
    starts: list[int] = []
    end = 0
    for t in tensors:
        starts.append(end)
        end += -(-t.numel() * t.dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return starts, end


def view(memory: Tensor, start: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """A contiguous tensor in a segment."""
    count = 1
    for size in shape:
        count *= size
    return memory[start : start + count * dtype.itemsize].view(dtype).view(tuple(shape))


def _rounded(nbytes: int) -> int:
    if nbytes >= _LARGE_STEP:
        return -(-nbytes // _LARGE_STEP) * _LARGE_STEP
    return max(_SMALLEST, 1 << (nbytes - 1).bit_length())
