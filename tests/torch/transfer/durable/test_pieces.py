"""Slices of tensors: cutting, meeting, covering."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import Partial

from tests.torch.transfer.durable.saving import as_rank
from torchft_x.errors import LeafError, TransferError
from torchft_x.transfer.durable.pieces import Box, check_tiling, held, rows, whole


def test_what_is_in_both() -> None:
    assert Box((0, 0), (4, 4)).meet(Box((2, 3), (5, 5))) == Box((2, 3), (2, 1))
    assert Box((0,), (4,)).meet(Box((4,), (4,))).empty
    assert Box((), ()).meet(Box((), ())) == Box((), ())
    assert Box((2, 3), (2, 1)).within(Box((1, 3), (5, 5))) == (slice(1, 3), slice(0, 1))


@pytest.mark.parametrize(
    ("boxes", "shape"),
    [
        ([whole((3, 4))], (3, 4)),
        ([Box((2,), (1,)), Box((0,), (2,))], (3,)),
        ([Box((0, 0), (2, 3)), Box((2, 0), (1, 3)), Box((0, 3), (2, 1)), Box((2, 3), (1, 1))], (3, 4)),
        ([whole(())], ()),
    ],
)
def test_a_grid_covers(boxes: list[Box], shape: tuple[int, ...]) -> None:
    check_tiling(boxes, shape, "w")


@pytest.mark.parametrize(
    ("boxes", "shape"),
    [
        ([], (3,)),
        ([Box((0,), (2,))], (3,)),  # a gap at the end
        ([Box((1,), (2,))], (3,)),
        ([Box((0,), (1,)), Box((2,), (1,))], (3,)),
        ([Box((0,), (2,)), Box((1,), (2,))], (3,)),  # an overlap
        ([Box((0,), (3,)), Box((0,), (3,))], (3,)),  # twice
        ([Box((0,), (4,))], (3,)),  # beyond the end
        ([Box((0, 0), (3, 2)), Box((0, 2), (2, 2)), Box((0, 2), (2, 2))], (3, 4)),
        ([Box((0, 0), (3, 4))], (12,)),  # other dimensions
        ([Box((0,), (3,)), Box((3,), (0,))], (3,)),  # an empty one
        ([whole(()), whole(())], ()),
    ],
)
def test_anything_else_does_not(boxes: list[Box], shape: tuple[int, ...]) -> None:
    with pytest.raises(TransferError, match="model/w"):
        check_tiling(boxes, shape, "model/w")


def test_a_box_in_parts_of_some_bytes() -> None:
    assert rows(Box((4, 1), (5, 2)), 4, 16) == [Box((4, 1), (2, 2)), Box((6, 1), (2, 2)), Box((8, 1), (1, 2))]
    assert rows(Box((0, 0), (2, 100)), 4, 16) == [Box((0, 0), (1, 100)), Box((1, 0), (1, 100))]
    assert rows(Box((), ()), 4, 1) == [Box((), ())]


def test_a_partial_sum_is_no_state() -> None:
    from torch.distributed.tensor import DTensor

    with as_rank(0, (2,)) as mesh, pytest.raises(LeafError, match="model/w is a partial sum"):
        held(DTensor.from_local(torch.zeros(2), mesh, [Partial()]), "model/w")
