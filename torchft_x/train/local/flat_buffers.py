"""Flat buffers for the values that an exchange sends, and their filling just ahead of the reader.

Computing a pseudo-gradient takes several passes over cold memory. If it were computed for the whole model before the
first byte is sent, the network would idle for that time. So it is computed piece by piece while earlier pieces are
sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torchft_x.train.local.error_feedback import ErrorFeedback

_ALIGNED = 1024  # in elements: a bucket begins at a multiple of this in its flat buffer


class Part(Protocol):
    """Interface to the values of a fragment, and to the use of their average."""

    @property
    def device(self) -> torch.device:
        """Device of the sent values, on which the process group can reduce."""

    @property
    def feedback(self) -> ErrorFeedback | None:
        """Error feedback of quantised exchanges; None if there is none."""

    def tensors(self) -> Sequence[torch.Tensor]:
        """Return this rank's tensors, whose shapes and dtypes are equal in all groups."""

    def fill(self, views: Sequence[torch.Tensor]) -> Iterator[None]:
        """Write the values that this rank sends into `views`, which have the shapes of `tensors`.

        Each turn of the iterator writes one view, in order. The values are the same until `apply`. Communication with
        other ranks of the group must happen in the first turn.
        """

    def apply(self, averages: Sequence[torch.Tensor]) -> None:
        """Use the averages of a committed exchange."""

    def after_heal(self) -> None:
        """Go on from the state of another group, which was just loaded."""


class FlatBuffers:
    """Flat buffers, one for each (dtype, device), with a view per tensor.

    `chunks` are slices of the buffers as (number of the buffer, begin, end) in elements, of at most `cap` bytes; if
    `cap` is None, one per tensor. A larger tensor spans several chunks, because a sum needs no tensor boundaries.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], cap: int | None) -> None:
        self.flat: list[torch.Tensor] = []
        self.chunks: list[tuple[int, int, int]] = []
        self.ends: list[tuple[int, int]] = [(0, 0)] * len(tensors)  # by tensor: its buffer, and its end in that
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
    """Fills `flats` for one attempt, with values times this group's share plus the carried quantisation error.

    Args:
        flats: buffers to write to.
        part: computes the values; the constructor takes its first turn.
        kept: values that were computed before; if given, `part` isn't used.
        share: this group's share in the weighted average.
        feedback: adds the carried error; its `start` was called.
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
        self._made = [0] * len(flats.flat)  # by buffer: end of the values that the part has written
        self._done = [0] * len(flats.flat)  # by buffer: end of the values that are ready to send
        self._turns = part.fill(flats.views) if kept is None else iter(())
        self._next = 0  # index of the tensor of the next turn
        if kept is None:
            self._turn()

    @torch.no_grad()
    def upto(self, number: int, end: int) -> None:
        """Make the values of buffer `number` before element `end` ready to send."""
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
