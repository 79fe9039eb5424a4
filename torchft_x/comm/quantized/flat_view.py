"""Several tensors as one sequence of values: any shape, stride and floating dtype, read and written piece by piece."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchft_x.comm.quantized.format import Format, decode


def get_padded_sizes(tensors: list[Tensor], world_size: int) -> list[torch.Size]:
    """Return the sizes with the first dimension rounded up to a multiple of `world_size`.

    A vector counts as a matrix of one column.
    """
    sizes = [(*t.shape, 1) if t.dim() == 1 else tuple(t.shape) or (1, 1) for t in tensors]
    return [torch.Size((math.ceil(s[0] / world_size) * world_size, *s[1:])) for s in sizes]


class FlatView:
    """View of several tensors as one sequence of values, in the order of their indices."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []  # tensors with gaps: (tensor, copy used instead)
        self._flats = [self._flat(t.detach()) for t in tensors]  # a flat view of each tensor
        self._ends: list[int] = []  # where each tensor ends in the sequence
        self.numel = 0
        for flat in self._flats:
            self.numel += flat.numel()
            self._ends.append(self.numel)
        self.device = self._flats[0].device if self._flats else torch.device("cpu")

    def _flat(self, tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        if not tensor.is_contiguous():
            copied = tensor.contiguous()
            self._copies.append((tensor, copied))
            tensor = copied
        return tensor.view(-1)

    def _pieces(self, a: int, b: int) -> Iterator[Tensor]:
        """Yield views of the values from `a` to `b`."""
        k = bisect.bisect_right(self._ends, a)
        while a < b:
            flat, end = self._flats[k], self._ends[k]
            begin = end - flat.numel()
            upto = min(b, end)
            if upto > a:
                yield flat[a - begin : upto - begin]
            a, k = max(upto, a), k + 1

    def read(self, a: int, b: int) -> Tensor:
        pieces = list(self._pieces(a, b))
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            return torch.empty(0, device=self.device)
        return torch.cat([p.float() for p in pieces])

    def write(self, a: int, b: int, part: Tensor, fmt: Format) -> None:
        """Decode a share into the values from `a` to `b`."""
        pieces = list(self._pieces(a, b))
        if len(pieces) == 1 and pieces[0].dtype == torch.float32:
            decode(part, b - a, fmt, pieces[0])
        else:
            self.put(a, b, decode(part, b - a, fmt))

    def put(self, a: int, b: int, values: Tensor) -> None:
        for piece in self._pieces(a, b):
            piece.copy_(values[: piece.numel()])
            values = values[piece.numel() :]

    def close(self) -> None:
        """Copy the results into the tensors with gaps."""
        for tensor, copied in self._copies:
            tensor.copy_(copied)


def parts_of(inputs: Sequence[Tensor], world: int) -> list[list[Tensor]]:
    """Return, for each rank, its rows of each input, followed by zeros for missing rows."""
    parts: list[list[Tensor]] = [[] for _ in range(world)]
    for tensor, size in zip(inputs, get_padded_sizes(list(inputs), world), strict=True):
        whole = tensor.detach().contiguous().view(-1)
        each = size.numel() // world
        for r, part in enumerate(parts):
            mine = whole[r * each : (r + 1) * each]
            part.append(mine)
            if mine.numel() < each:
                part.append(mine.new_zeros(each - mine.numel()))
    return parts
