"""From the stream of a shard to the places of its tensors: which blocks are read, and where their bytes go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor

from torchft_x.transfer.durable.pieces import Box, rows
from torchft_x.transfer.format.blocks import Block
from torchft_x.transfer.format.layout import TensorSpec
from torchft_x.transfer.format.memory import allocate, as_words, contiguous_stride, extent, view_storage

READ_BYTES = 32 << 20  # of one read; a tensor is read in parts of about this size


class Part(NamedTuple):
    """What one rank has written of one tensor."""

    rank: int
    spec: TensorSpec  # in the shard
    box: Box  # in the whole


class Job:
    """One part of one tensor on its way from the stream to its place."""

    def __init__(self, start: int, part: Part, common: Box, tensor: Tensor, box: Box) -> None:
        self.start = start  # in the stream
        self.end = start + extent(part.box.shape, part.spec.stride, part.spec.dtype.itemsize)
        self._part = part  # `box`: what the bytes are
        self._common = common  # what is wanted of it
        self._tensor, self._box = tensor, box  # where it goes, and what that holds
        self._bytes: Tensor | None = None  # as far as they have come
        self._came = 0

    def take(self, start: int, data: Tensor) -> bool:
        """Whether it is done with what comes here."""
        first, end = max(self.start, start), min(self.end, start + data.numel())
        if first >= end:
            return False
        if self._bytes is None:
            self._bytes = allocate(self.end - self.start)
        self._bytes[first - self.start : end - self.start] = data[first - start : end - start]
        self._came += end - first
        if self._came < self.end - self.start:
            return False
        part = self._part
        came = view_storage(self._bytes.untyped_storage(), part.spec.dtype, 0, part.box.shape, part.spec.stride)
        place = self._tensor[self._common.within(self._box)]
        as_words(place).copy_(as_words(came[self._common.within(part.box)]))
        self._bytes = None
        return True


def jobs_of(part: Part, starts: list[int], tensor: Tensor, box: Box) -> Iterator[Job]:
    """What is read of `part` to fill `tensor`, which holds the part `box` of the whole. `starts`: of the shard's blobs."""
    spec, common = part.spec, part.box.meet(box)
    if common.empty or spec.blob is None:
        return
    start = starts[spec.blob] + spec.offset
    if spec.stride != contiguous_stride(spec.shape) or not spec.shape:
        yield Job(start, part, common, tensor, box)
        return
    row = spec.stride[0] * spec.dtype.itemsize
    for piece in rows(common, spec.dtype.itemsize, READ_BYTES):  # whole rows of the part: what is read lies together
        lines = Box((piece.offset[0], *part.box.offset[1:]), (piece.shape[0], *part.box.shape[1:]))
        first = start + (lines.offset[0] - part.box.offset[0]) * row
        yield Job(first, part._replace(box=lines), piece, tensor, box)


def covering(blocks: tuple[Block, ...], jobs: list[Job]) -> list[int]:
    """Indices of the blocks that hold something of a job; the jobs in the order of their starts."""
    wanted, k = [], 0
    for i, block in enumerate(blocks):
        while k < len(jobs) and jobs[k].end <= block.start:
            k += 1
        if any(job.end > block.start for job in _starting_before(jobs, k, block.start + block.nbytes)):
            wanted.append(i)
    return wanted


def _starting_before(jobs: list[Job], k: int, end: int) -> Iterator[Job]:
    while k < len(jobs) and jobs[k].start < end:
        yield jobs[k]
        k += 1


def runs(blocks: tuple[Block, ...], wanted: Iterable[int]) -> Iterator[list[int]]:
    """Neighbours together, up to `READ_BYTES`."""
    run: list[int] = []
    for i in wanted:
        if run and (i != run[-1] + 1 or blocks[i].start + blocks[i].nbytes - blocks[run[0]].start > READ_BYTES):
            yield run
            run = []
        run.append(i)
    if run:
        yield run
