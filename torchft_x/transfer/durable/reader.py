"""Reads a complete checkpoint into a state dict, sharded as the reader's own state is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchft_x.errors import TransferError
from torchft_x.transfer.durable import names, sealed
from torchft_x.transfer.durable.catalog import read_manifest
from torchft_x.transfer.durable.names import Name
from torchft_x.transfer.durable.pieces import Box, check_tiling, held, rows, whole
from torchft_x.transfer.durable.sealed import GO_ON, DamagedError, Index
from torchft_x.transfer.durable.store import Store
from torchft_x.transfer.format.blocks import Block, cut_blocks, digest, place_blobs
from torchft_x.transfer.format.flatten import is_dtensor
from torchft_x.transfer.format.layout import Layout, TensorSpec
from torchft_x.transfer.format.memory import (
    allocate,
    as_words,
    contiguous_stride,
    extent,
    has_memory,
    memory_of,
    physical_memory,
    view_storage,
)
from torchft_x.transfer.format.rebuild import Finder, Target, find_targets, rebuild

READ_BYTES = 16 << 20  # bytes of one read, about; malloc takes new pages for each buffer above 32 MiB

Blocks = Sequence[tuple[Block, int]]
"""Adjacent blocks of a stream, each with its digest."""


class Saved:
    """A complete checkpoint, open for reading. Raises `TransferError` if index or manifest are invalid."""

    def __init__(self, store: Store, name: Name) -> None:
        self._store = store
        self.name = name
        self.manifest, self.layout = read_manifest(store, name)
        self._shards: list[tuple[Index, Layout]] = []
        self._parts: list[list[Part]] = [[] for _ in self.layout.tensors]
        for rank in range(self.manifest.ranks):
            self._open_shard(rank)
        with store.about(str(name)):
            for parts, spec, target in zip(self._parts, self.layout.tensors, self._targets(None), strict=True):
                if spec.blob is not None or parts:
                    check_tiling([p.box for p in parts], spec.shape, target.path)

    def _open_shard(self, rank: int) -> None:
        file = f"{self.name}/{names.index_file(rank)}"
        data = self._store.read(file, 0, sealed.MAX_SEALED_BYTES)
        m = self.manifest
        with self._store.about(file):
            if sealed.sha256(data) != m.shards[rank][0]:
                raise DamagedError(f"it is not the one that the manifest names; {GO_ON}.")
            index, layout = sealed.open_index(data)
            ours = (m.save, m.step, m.committed_in, m.ranks, m.structure, rank, m.shards[rank][1])
            i = index
            if (i.save, i.step, i.committed_in, i.ranks, i.structure, i.rank, i.nbytes) != ours:
                raise TransferError("it is of another checkpoint than the manifest.")
            for (number, offset), spec in zip(index.pieces, layout.tensors, strict=True):
                if number >= len(self._parts) or self.layout.tensors[number].dtype != spec.dtype:
                    raise TransferError(f"it has a tensor {number} of {spec.dtype} that the manifest doesn't have.")
                self._parts[number].append(Part(rank, spec, Box(offset, spec.shape)))
        self._shards.append((index, layout))

    def shapes(self) -> Any:
        """Return the state dict with tensors on the meta device, which have a shape and dtype only."""
        tensors = [torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in self.layout.tensors]
        with self._store.about(str(self.name)):
            return rebuild(self.layout, self._targets(None), tensors)

    @torch.no_grad()
    def load(self, into: Any = None) -> Any:
        """Return the state dict. Tensors of `into`, a state dict of the same keys, are filled and are in the result.

        A DTensor is filled with the shard that this rank holds, however the writers cut theirs. A tensor on the
        meta device stays, and is not read. Other tensors are new, whole, on the CPU.

        Reads only the blocks that are needed, and checks the digest of each. Raises `TransferError` naming the
        tensor; before anything is changed if a shape or dtype differs.
        """
        specs = self.layout.tensors
        with self._store.about(str(self.name)):
            found = self._targets(into)
            fresh = sum(spec.end for spec, target in zip(specs, found, strict=True) if target.given is None)
            if fresh > physical_memory():
                raise TransferError(
                    f"it needs {fresh} bytes of new memory, this machine has {physical_memory()}; load it into tensors "
                    "that are there, sharded over more ranks."
                )
            places = [_place(spec, target) for spec, target in zip(specs, found, strict=True)]
        jobs: list[list[_Job]] = [[] for _ in self._shards]
        starts = [place_blobs(layout.blobs)[0] for _, layout in self._shards]
        for parts, (tensor, box) in zip(self._parts, places, strict=True):
            for part in parts if not tensor.is_meta else ():
                jobs[part.rank] += _jobs(part, starts[part.rank], tensor, box)
        try:
            for rank, shard in enumerate(jobs):
                self._fill(rank, shard)
        except TransferError as e:
            e.torn = into is not None
            raise
        with self._store.about(str(self.name)):
            targets = [
                Target(target.path, target.given, None if target.given is None else tensor)
                for target, (tensor, _) in zip(found, places, strict=True)
            ]
            return rebuild(self.layout, targets, [tensor for tensor, _ in places])

    def verify(self) -> int:
        """Read all data, check each digest, and return the number of bytes. Raises `TransferError` naming the file."""
        for rank in range(len(self._shards)):
            for window in windows(self._blocks(rank)):
                self._read(rank, window)
        return sum(index.nbytes for index, _ in self._shards)

    def _targets(self, into: Any) -> list[Target]:
        return find_targets(self.layout, into, _Places)

    def _fill(self, rank: int, jobs: list[_Job]) -> None:
        """Fill tensors from one shard. Jobs in adjacent blocks share a read of about `READ_BYTES`."""
        jobs.sort(key=lambda job: job.start)
        blocks = self._blocks(rank)
        starts = [block.start for block, _ in blocks]
        spans = [(bisect_right(starts, job.start) - 1, bisect_left(starts, job.end)) for job in jobs]
        done = 0
        while done < len(jobs):
            (first, end), upto = spans[done], done + 1
            while upto < len(jobs) and spans[upto][0] <= end and jobs[upto].end - starts[first] <= READ_BYTES:
                end = max(end, spans[upto][1])
                upto += 1
            data = self._read(rank, blocks[first:end])
            for job in jobs[done:upto]:
                job.fill(data, starts[first])
            done = upto

    def _blocks(self, rank: int) -> Blocks:
        index, layout = self._shards[rank]
        return list(zip(cut_blocks(layout.blobs), index.digests, strict=True))

    def _read(self, rank: int, blocks: Blocks) -> Tensor:
        return read_blocks(self._store, f"{self.name}/{names.data_file(rank)}", blocks, f"; {GO_ON}")


def windows(blocks: Blocks) -> Iterator[Blocks]:
    """Cut a stream's blocks into windows of up to `READ_BYTES`."""
    first = 0
    for i, (block, _) in enumerate(blocks):
        if block.start + block.nbytes - blocks[first][0].start > READ_BYTES:
            yield blocks[first:i]
            first = i
    if blocks:
        yield blocks[first:]


def read_blocks(store: Store, file: str, blocks: Blocks, advice: str = "") -> Tensor:
    """Return the bytes of adjacent blocks of a file.

    Raises `DamagedError`, with this advice, if bytes are missing or a digest is wrong.
    """
    start = blocks[0][0].start
    data = allocate(blocks[-1][0].start + blocks[-1][0].nbytes - start)
    for window in windows(blocks):
        at, end = window[0][0].start, window[-1][0].start + window[-1][0].nbytes
        read = store.read(file, at, end)
        if len(read) != end - at:
            raise DamagedError(f"checkpoint {store.shown}: {file} ends after {at + len(read)} of its bytes{advice}.")
        memory_of(data)[at - start : end - start] = read
    for block, expected in blocks:
        at, end = block.start, block.start + block.nbytes
        if digest(data[at - start : end - start]) != expected:
            raise DamagedError(f"checkpoint {store.shown}: {file} is damaged between bytes {at} and {end}{advice}.")
    return data


class _Places(Finder):
    """The walk over the manifest's tree. A target may be a DTensor, which takes its part of the whole."""

    def place(self, index: int, tag: str, rest: list[Any], into: Any, path: str) -> Any:
        self.check_parameter(index, tag, rest, path)
        if tag == "D":
            raise TransferError(f"it has a broken tensor at {path!r}.")
        self.targets.append(Target(path, into if _stays(into) else None, None))
        return None


def _place(spec: TensorSpec, target: Target) -> tuple[Tensor, Box]:
    """Return the memory, and the slice of the whole that it holds. Raises `TransferError` if it doesn't fit."""
    into = target.given
    if into is None:
        return torch.empty(spec.shape, dtype=spec.dtype), whole(spec.shape)
    if tuple(into.shape) != spec.shape or into.dtype != spec.dtype:
        raise TransferError(
            f"{target.path} is {spec.shape} {spec.dtype} there and {tuple(into.shape)} {into.dtype} here; it was saved "
            "by another model."
        )
    if is_dtensor(into):
        return into.to_local().detach(), held(into, target.path)[0]
    return into.detach(), whole(spec.shape)


def _stays(into: Any) -> bool:
    """Return whether `into` is a tensor with memory of its own to fill, or a meta tensor, which needs none."""
    if not isinstance(into, Tensor):
        return False
    if into.is_meta:
        return True
    memory = into.to_local() if is_dtensor(into) else into
    return has_memory(memory) and not (memory.is_conj() or memory.is_neg())


class Part(NamedTuple):
    """The slice of one tensor that one rank has written."""

    rank: int
    spec: TensorSpec  # the slice in the shard
    box: Box  # the slice's place in the whole tensor


class _Job(NamedTuple):
    """Bytes of a shard that fill a tensor, or a part of it."""

    start: int  # byte in the stream
    end: int
    part: Part  # `box`: the slice that the bytes hold
    common: Box  # the part of the slice that is wanted
    place: Tensor  # where it goes

    def fill(self, data: Tensor, start: int) -> None:
        """Copy from `data`, which is at byte `start` of the stream and holds all bytes of the job."""
        box, spec = self.part.box, self.part.spec
        came = view_storage(data.untyped_storage(), spec.dtype, self.start - start, box.shape, spec.stride)
        as_words(self.place).copy_(as_words(came[self.common.within(box)]))


def _jobs(part: Part, starts: list[int], tensor: Tensor, box: Box) -> Iterator[_Job]:
    """Yield the reads of `part` that fill `tensor`, which holds the slice `box` of the whole.

    `starts`: where each blob of the shard starts in the stream.
    """
    spec, common, size = part.spec, part.box.meet(box), part.spec.dtype.itemsize
    if common.empty or spec.blob is None:
        return
    start = starts[spec.blob] + spec.offset
    if spec.stride != contiguous_stride(spec.shape) or not spec.shape:
        end = start + extent(spec.shape, spec.stride, size)
        yield _Job(start, end, part, common, tensor[common.within(box)])
        return
    row = spec.stride[0] * size
    for piece in rows(common, size, READ_BYTES):  # whole rows, contiguous in the stream
        lines = Box((piece.offset[0], *part.box.offset[1:]), (piece.shape[0], *part.box.shape[1:]))
        first = start + (lines.offset[0] - part.box.offset[0]) * row
        end = first + lines.shape[0] * row
        yield _Job(first, end, part._replace(box=lines), piece, tensor[piece.within(box)])
