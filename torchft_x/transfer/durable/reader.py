"""Reads a complete checkpoint into a state dict, sharded as the reader's own state is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchft_x.errors import TransferError
from torchft_x.transfer.durable import names, sealed
from torchft_x.transfer.durable.catalog import read_manifest
from torchft_x.transfer.durable.filling import Job, Part, covering, jobs_of, runs
from torchft_x.transfer.durable.names import Name
from torchft_x.transfer.durable.pieces import Box, check_tiling, held, whole
from torchft_x.transfer.durable.sealed import GO_ON, DamagedError, Index
from torchft_x.transfer.durable.store import Store
from torchft_x.transfer.format.blocks import Block, cut_blocks, digest, place_blobs
from torchft_x.transfer.format.flatten import is_dtensor
from torchft_x.transfer.format.layout import Layout, TensorSpec
from torchft_x.transfer.format.memory import allocate, has_memory, memory_of, physical_memory
from torchft_x.transfer.format.rebuild import Finder, Target, find_targets, rebuild


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
        jobs: list[list[Job]] = [[] for _ in self._shards]
        starts = [place_blobs(layout.blobs)[0] for _, layout in self._shards]
        for parts, (tensor, box) in zip(self._parts, places, strict=True):
            for part in parts if not tensor.is_meta else ():
                jobs[part.rank] += jobs_of(part, starts[part.rank], tensor, box)
        try:
            for rank, shard in enumerate(jobs):
                self._read(rank, shard)
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
        for rank, (index, layout) in enumerate(self._shards):
            for _ in self._blocks(rank, index, cut_blocks(layout.blobs), range(len(index.digests))):
                pass
        return sum(index.nbytes for index, _ in self._shards)

    def _targets(self, into: Any) -> list[Target]:
        return find_targets(self.layout, into, _Places)

    def _read(self, rank: int, jobs: list[Job]) -> None:
        """Read one shard's blocks in the order of the stream, so that few jobs are open at a time."""
        index, layout = self._shards[rank]
        jobs.sort(key=lambda job: job.start)
        blocks = cut_blocks(layout.blobs)
        wanted = covering(blocks, jobs)
        waiting, open_jobs = iter([*jobs]), []
        upcoming = next(waiting, None)
        for _, start, data in self._blocks(rank, index, blocks, wanted):
            while upcoming is not None and upcoming.start < start + data.numel():
                open_jobs.append(upcoming)
                upcoming = next(waiting, None)
            open_jobs = [job for job in open_jobs if not job.take(start, data)]
        if open_jobs or upcoming is not None:
            raise AssertionError("a piece that no block holds")

    def _blocks(
        self, rank: int, index: Index, blocks: Sequence[Block], wanted: Iterable[int]
    ) -> Iterator[tuple[list[int], int, Tensor]]:
        file = f"{self.name}/{names.data_file(rank)}"
        return checked_blocks(self._store, file, blocks, index.digests, wanted, f"; {GO_ON}")


def checked_blocks(
    store: Store, file: str, blocks: Sequence[Block], digests: Sequence[int], wanted: Iterable[int], advice: str = ""
) -> Iterator[tuple[list[int], int, Tensor]]:
    """Yield runs of a file's blocks: their indices, the first byte in the stream, and the bytes.

    Raises `DamagedError`, with this advice, if blocks are missing or a digest is wrong.
    """
    for run in runs(blocks, wanted):
        first, end = blocks[run[0]].start, blocks[run[-1]].start + blocks[run[-1]].nbytes
        read = store.read(file, first, end)
        if len(read) != end - first:
            raise DamagedError(f"checkpoint {store.shown}: {file} ends after {first + len(read)} of its bytes{advice}.")
        data = allocate(len(read))
        memory_of(data)[:] = read
        for i in run:
            at, upto = blocks[i].start, blocks[i].start + blocks[i].nbytes
            if digest(data[at - first : upto - first]) != digests[i]:
                raise DamagedError(
                    f"checkpoint {store.shown}: {file} is damaged between bytes {at} and {upto}{advice}."
                )
        yield run, first, data


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
