"""The slice of a tensor that a rank holds, and whether the slices of all ranks are the whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchft_x.errors import LeafError, TransferError


class Box(NamedTuple):
    """Slice of a tensor: for each dimension its start and its length."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def empty(self) -> bool:
        return 0 in self.shape

    def meet(self, other: Box) -> Box:
        """Return the intersection of both slices."""
        begin = tuple(map(max, self.offset, other.offset))
        ends = (min(a + n, b + m) for a, n, b, m in zip(*self, *other, strict=True))
        return Box(begin, tuple(max(0, end - start) for start, end in zip(begin, ends, strict=True)))

    def within(self, other: Box) -> tuple[slice, ...]:
        """Return the index of this slice in a tensor that holds `other`."""
        return tuple(slice(a - b, a - b + n) for a, n, b in zip(self.offset, self.shape, other.offset, strict=True))


def whole(shape: Sequence[int]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


def held(tensor: Any, path: str) -> tuple[Box, bool]:
    """Return the slice of a DTensor that this rank holds, and whether this rank is the one that writes it.

    Raises `LeafError` for a partial sum, and for a shard that is no slice.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, local = tensor.device_mesh, tensor.to_local()
    if any(p.is_partial() for p in tensor.placements):
        raise LeafError(f"state dict leaf {path} is a partial sum over the group's ranks; reduce it first.")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return Box((0,) * tensor.dim(), (0,) * tensor.dim()), False
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
    if tuple(shape) != tuple(local.shape):
        raise LeafError(
            f"state dict leaf {path}: a shard of {tuple(local.shape)} where {tensor.placements} of "
            f"{tuple(tensor.shape)} is {tuple(shape)}; it can't be saved."
        )
    first = all(c == 0 for c, p in zip(coordinate, tensor.placements, strict=True) if p.is_replicate())
    return Box(tuple(offset), tuple(shape)), first


def check_tiling(boxes: Sequence[Box], shape: Sequence[int], path: str) -> None:
    """Raise `TransferError` unless the boxes, in any order, are a grid that covers a tensor of this shape exactly.

    Shards always are a grid: each dimension is cut at the same places for all.
    """
    dims = range(len(shape))
    if any(len(b.offset) != len(shape) or len(b.shape) != len(shape) or b.empty for b in boxes):
        raise TransferError(f"{path}: a piece has other dimensions than the tensor.")
    cuts = [sorted({0, shape[d], *(b.offset[d] for b in boxes)}) for d in dims]
    cells = 1
    for d in dims:
        cells *= len(cuts[d]) - 1
    following = [dict(zip(cuts[d], cuts[d][1:], strict=False)) for d in dims]
    corners = {b.offset for b in boxes}
    whole_cells = all(following[d].get(b.offset[d]) == b.offset[d] + b.shape[d] for b in boxes for d in dims)
    if not (cells == len(boxes) == len(corners) and whole_cells):
        raise TransferError(f"{path}: its {len(boxes)} pieces don't cover {tuple(shape)} without gap or overlap.")


def rows(box: Box, itemsize: int, most: int) -> list[Box]:
    """Return the box, cut along its first dimension into parts of at most `most` bytes, or of one row."""
    if not box.shape:
        return [box]
    row = itemsize
    for n in box.shape[1:]:
        row *= n
    step = max(1, most // row)
    starts = range(0, box.shape[0], step)
    return [Box((box.offset[0] + s, *box.offset[1:]), (min(step, box.shape[0] - s), *box.shape[1:])) for s in starts]
