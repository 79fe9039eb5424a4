"""What an exchange sends, made piece by piece: the same as made at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from torchft_x.train.local.error_feedback import ErrorFeedback
from torchft_x.train.local.flat_buffers import Filling, FlatBuffers

TENSORS = [
    torch.arange(3000.0),
    torch.arange(7, dtype=torch.bfloat16),
    torch.zeros(0),
    torch.arange(2000.0).view(40, 50) - 5,
    torch.tensor(3.0, dtype=torch.bfloat16),
    torch.tensor(9.0),
]


class Some:
    """A part that counts the tensors it has made."""

    made = 0

    def tensors(self) -> Sequence[torch.Tensor]:
        return TENSORS

    def fill(self, views: Sequence[torch.Tensor]) -> Iterator[None]:
        for view, tensor in zip(views, TENSORS, strict=True):
            view.copy_(tensor)
            self.made += 1
            yield


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_pieces_are_what_the_whole_would_be(share: float, kept: bool) -> None:
    part, flats, feedback = Some(), FlatBuffers(TENSORS, None), ErrorFeedback()
    whole = [torch.cat([t.reshape(-1) for t in TENSORS if t.dtype == d]) for d in (torch.float32, torch.bfloat16)]
    carried = [torch.linspace(0, 1, t.numel()) for t in whole]
    feedback.load(carried, sum(t.numel() for t in whole))
    lost = feedback.start(flats.flat, sends=True)
    filling = Filling(flats, part, whole if kept else None, share, feedback)
    assert part.made == (0 if kept else 1)  # the first turn is at once
    filling.upto(0, 10)
    filling.upto(0, 10)  # nothing twice
    assert part.made <= 1
    for number, end in ((0, 3500), (1, 3), (0, 5001), (1, 8)):
        filling.upto(number, end)
    for number, flat in enumerate(flats.flat):
        exact = (whole[number] * share).float() + carried[number]
        assert torch.equal(flat, exact.to(flat.dtype))
        assert torch.equal(lost[number], exact - flat.float() if number else torch.zeros(5001))
