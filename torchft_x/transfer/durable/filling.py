"""From the stream of a shard to its tensors: which blocks are read, and where their bytes go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from torchft_x.transfer.durable.pieces import Box, rows
from torchft_x.transfer.format.blocks import Block
from torchft_x.transfer.format.layout import TensorSpec
from torchft_x.transfer.format.memory import allocate, as_words, contiguous_stride, extent, view_storage

READ_BYTES = 32 << 20  # bytes of one read; a tensor is read in parts of about this size


class Part(NamedTuple):
    """The slice of one tensor that one rank has written."""

    rank: int
    spec: TensorSpec  # the slice in the shard
    box: Box  # the slice's place in the whole tensor


class Job:
    """One part of one tensor on its way from the stream to its place."""

    def __init__(self, start: int, part: Part, common: Box, tensor: Tensor, box: Box) -> None:
        self.start = start  # byte in the stream
        self.end = start + extent(part.box.shape, part.spec.stride, part.spec.dtype.itemsize)
        self._part = part  # `box`: the slice that the bytes hold
        self._common = common  # the part of the slice that is wanted
        self._tensor, self._box = tensor, box  # destination, and the slice that it holds
        self._bytes: Tensor | None = None  # the part's bytes received so far
        self._came = 0

    def take(self, start: int, data: Tensor) -> bool:
        """Copy the job's share of `data`, at byte `start` of the stream. Return whether the job is complete."""
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
    """Yield the reads of `part` that fill `tensor`, which holds the slice `box` of the whole.

    `starts`: where each blob of the shard starts in the stream.
    """
    spec, common = part.spec, part.box.meet(box)
    if common.empty or spec.blob is None:
        return
    start = starts[spec.blob] + spec.offset
    if spec.stride != contiguous_stride(spec.shape) or not spec.shape:
        yield Job(start, part, common, tensor, box)
        return
    row = spec.stride[0] * spec.dtype.itemsize
    for piece in rows(common, spec.dtype.itemsize, READ_BYTES):  # whole rows, contiguous in the stream
        lines = Box((piece.offset[0], *part.box.offset[1:]), (piece.shape[0], *part.box.shape[1:]))
        first = start + (lines.offset[0] - part.box.offset[0]) * row
        yield Job(first, part._replace(box=lines), piece, tensor, box)


def covering(blocks: tuple[Block, ...], jobs: list[Job]) -> list[int]:
    """Return the indices of the blocks that hold bytes of a job. The jobs must be sorted by their starts."""
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


def runs(blocks: Sequence[Block], wanted: Iterable[int]) -> Iterator[list[int]]:
    """Group adjacent blocks into runs of up to `READ_BYTES`."""
    run: list[int] = []
    for i in wanted:
        if run and (i != run[-1] + 1 or blocks[i].start + blocks[i].nbytes - blocks[run[0]].start > READ_BYTES):
            yield run
            run = []
        run.append(i)
    if run:
        yield run
