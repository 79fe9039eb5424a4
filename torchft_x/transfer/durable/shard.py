"""One rank's part of a state, frozen: the tensors that it alone writes, and their places in the whole."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchft_x.transfer.durable.names import Name
from torchft_x.transfer.durable.pieces import Box, held, whole
from torchft_x.transfer.durable.sealed import Index
from torchft_x.transfer.format.blocks import cut_blocks, digest, place_blobs
from torchft_x.transfer.format.flatten import Flattener, group_tensors
from torchft_x.transfer.format.layout import Layout, TensorSpec
from torchft_x.transfer.format.leaves import Node
from torchft_x.transfer.format.memory import allocate, contiguous_stride, populate
from torchft_x.transfer.snapshot import copy_to_host, on_accelerator, serves


@dataclass(frozen=True)
class Shard:
    """Frozen part of a state, so that the state itself may change. This rank writes `layout`, `pieces` and `memory`."""

    step: int
    committed_in: int
    rank: int
    ranks: int
    structure: str
    whole: Layout  # layout of the state as if it were on one rank
    layout: Layout
    pieces: tuple[tuple[int, tuple[int, ...]], ...]  # as in `Index`
    memory: Tensor  # uint8; at least as long as the stream

    @property
    def nbytes(self) -> int:
        return place_blobs(self.layout.blobs)[1]

    def index(self, save: Name) -> Index:
        """Return the shard's index. Reads all of the memory, for the digests."""
        digests = tuple(digest(self.memory[b.start : b.start + b.nbytes]) for b in cut_blocks(self.layout.blobs))
        return Index(
            str(save), self.step, self.committed_in, self.rank, self.ranks, self.structure, self.pieces, digests,
            self.nbytes,
        )  # fmt: skip


def freeze(
    state_dict: Any, *, step: int, committed_in: int = 0, rank: int = 0, ranks: int = 1, memory: Tensor | None = None
) -> Shard:
    """Copy the part of a group's state dict that rank `rank` of `ranks` writes.

    It consists of the rank's shards of DTensors, each written by one rank only. Rank 0 also writes all values that
    are not sharded, which are the same on all ranks. `memory`, that of an unused earlier shard, is reused if it is long
    enough. Raises `LeafError` naming the path of a value that can't be saved.
    """
    walk, ours, boxes, shapes = _ours(state_dict, rank)
    complete = _whole_layout(walk.tree, [t.dtype for t in walk.tensors], shapes)
    named = [[p, str(t.dtype), s] for p, t, s in zip(walk.paths, walk.tensors, shapes, strict=True)]
    structure = hashlib.sha256(json.dumps(named).encode()).hexdigest()
    pieces = tuple((i, boxes[i][0].offset) for i in ours)
    specs, sources, sizes = group_tensors([walk.tensors[i] for i in ours])
    layout = Layout(["list", [["T", i] for i in range(len(ours))]], tuple(specs), tuple(sizes))
    starts, length = place_blobs(sizes)
    pinned = on_accelerator(sources)
    if memory is None or not serves(memory, length, pinned):
        memory = allocate_room(length, pinned)
    copy_to_host(sources, starts, memory)
    return Shard(step, committed_in, rank, ranks, structure, complete, layout, pieces, memory)


def room_for(state_dict: Any, *, rank: int = 0) -> tuple[int, bool]:
    """Return the bytes that `freeze` of such a state needs, and whether in pinned memory. Raises `LeafError`."""
    walk, ours, _, _ = _ours(state_dict, rank)
    _, sources, sizes = group_tensors([walk.tensors[i] for i in ours])
    return place_blobs(sizes)[1], on_accelerator(sources)


def allocate_room(length: int, pinned: bool) -> Tensor:
    """Allocate memory for `freeze` in advance, which then takes no longer than the copy."""
    memory = allocate(max(length, 1), pinned=pinned)
    populate(memory)
    return memory


def _ours(
    state_dict: Any, rank: int
) -> tuple[_ShardFlattener, list[int], list[tuple[Box, bool]], list[tuple[int, ...]]]:
    """Return the walk over the state, the tensors that this rank writes, and each tensor's slice and whole shape."""
    walk = _ShardFlattener()
    walk.tree = walk.node(state_dict, "", 0)
    boxes = [walk.boxes.get(i) or (whole(t.shape), rank == 0) for i, t in enumerate(walk.tensors)]
    shapes = [walk.shapes.get(i, tuple(t.shape)) for i, t in enumerate(walk.tensors)]
    return walk, [i for i, (box, writes) in enumerate(boxes) if writes and not box.empty], boxes, shapes


class _ShardFlattener(Flattener):
    """Walks a state dict, and describes DTensors by their global shape."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: Node = None
        self.paths: list[str] = []  # path of each tensor
        self.boxes: dict[int, tuple[Box, bool]] = {}  # of each DTensor: slice on this rank, whether it writes it
        self.shapes: dict[int, tuple[int, ...]] = {}

    def tensor(self, value: Any, path: str) -> Node:
        self.paths.append(path)
        return super().tensor(value, path)

    def sharded(self, value: Any, index: int, path: str) -> Node:
        self.boxes[index] = held(value, path)
        self.shapes[index] = tuple(value.shape)
        return ["T", index]


def _whole_layout(tree: Node, dtypes: list[Any], shapes: list[tuple[int, ...]]) -> Layout:
    specs: list[TensorSpec] = []
    sizes: list[int] = []
    for dtype, shape in zip(dtypes, shapes, strict=True):
        empty = 0 in shape
        specs.append(TensorSpec(dtype, shape, contiguous_stride(shape), None if empty else len(sizes), 0))
        if not empty:
            sizes.append(specs[-1].end)
    return Layout(tree, tuple(specs), tuple(sizes))
