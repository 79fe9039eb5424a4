"""Memory for what an exchange sends: flat buffers, and how they are filled as far as somebody is about to read them.

Making a pseudo-gradient takes some passes over memory that nobody has touched yet. Done for the whole model before the first
byte is sent that is time in which the network rests, so it is done piece by piece while earlier pieces travel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torchft_x.train.local.error_feedback import ErrorFeedback

_ALIGNED = 1024  # elements: a bucket within a flat buffer begins at a multiple of this


class Part(Protocol):
    """What is averaged."""

    def tensors(self) -> Sequence[torch.Tensor]:
        """This rank's, for their shapes, dtypes and devices; the same in all groups."""

    def fill(self, views: Sequence[torch.Tensor]) -> Iterator[None]:
        """Write what this rank sends into `views`, which have the shapes of `tensors`, one for each turn of the iterator, in
        order. The same until `apply`. Whatever needs other ranks of the group happens in the first turn."""


class FlatBuffers:
    """Memory for some tensors, one flat buffer for each (dtype, device), with a view per tensor.

    `chunks` are slices of the buffers of at most `cap` bytes (None: one per tensor), as (number of the buffer, begin, end). A
    tensor that is larger than that is in several of them: where it begins and ends is of no interest to a sum.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], cap: int | None) -> None:
        self.flat: list[torch.Tensor] = []
        self.chunks: list[tuple[int, int, int]] = []
        self.ends: list[tuple[int, int]] = [(0, 0)] * len(tensors)  # by tensor: its buffer, and where it ends there
        views: dict[int, torch.Tensor] = {}
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for i, t in enumerate(tensors):
            kinds.setdefault((t.dtype, t.device), []).append(i)
        for number, ((dtype, device), members) in enumerate(kinds.items()):
            flat = torch.empty(sum(tensors[i].numel() for i in members), dtype=dtype, device=device)
            at = 0
            for i in members:
                views[i] = flat[at : at + tensors[i].numel()].view(tensors[i].shape)
                at += tensors[i].numel()
                self.ends[i] = (number, at)
            self.flat.append(flat)
            step = 0 if cap is None else max(_ALIGNED, cap // flat.element_size() // _ALIGNED * _ALIGNED)
            cuts = [0, *(self.ends[i][1] for i in members)] if cap is None else [*range(0, at, step), at]
            self.chunks += [(number, a, b) for a, b in pairwise(cuts) if a < b]
        self.views = [views[i] for i in range(len(tensors))]


class Filling:
    """Of one attempt: the values of `flats` times this group's share, with what error feedback carries added.

    Args:
        flats: to write to.
        part: makes the values; its first turn is taken here.
        kept: the values, if they were made before; then `part` isn't asked.
        share: of this group in the weighted average.
        feedback: adds what it carries; its attempt has begun.
    """

    def __init__(
        self,
        flats: FlatBuffers,
        part: Part,
        kept: Sequence[torch.Tensor] | None,
        share: float,
        feedback: ErrorFeedback | None,
    ) -> None:
        self._flats, self._kept, self._share, self._feedback = flats, kept, share, feedback
        self._made = [0] * len(flats.flat)  # by buffer: up to where the part has written
        self._done = [0] * len(flats.flat)  # and up to where the values are what is sent
        self._turns = part.fill(flats.views) if kept is None else iter(())
        self._next = 0  # tensor
        if kept is None:
            self._turn()

    @torch.no_grad()
    def upto(self, number: int, end: int) -> None:
        """Have the values of buffer `number` before `end`."""
        begin, flat = self._done[number], self._flats.flat[number]
        if end <= begin:
            return
        if self._kept is not None:
            flat[begin:end].copy_(self._kept[number][begin:end])
        while self._kept is None and self._made[number] < end:
            self._turn()
        if self._share != 1.0:
            flat[begin:end].mul_(self._share)
        if self._feedback is not None:
            self._feedback.add(number, flat[begin:end], begin)
        self._done[number] = end

    def _turn(self) -> None:
        with torch.no_grad():
            next(self._turns)
        number, end = self._flats.ends[self._next]
        self._made[number] = max(self._made[number], end)
        self._next += 1
