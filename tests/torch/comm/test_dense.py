"""What torch's gloo takes as it lies in memory must fill it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from torchft_x.comm.base import check_dense
from torchft_x.comm.gloo.group import ProcessGroupGloo, _check_arguments
from torchft_x.errors import ConfigError

TABLE = torch.zeros(3, 4)


@pytest.mark.parametrize(
    "tensor",
    [TABLE, TABLE.t(), TABLE[1:], TABLE[:, None], TABLE.permute(1, 0)[None], torch.tensor(1.0), TABLE[:0, ::2]],
)
def test_dense_in_any_order_of_dimensions(tensor: torch.Tensor) -> None:
    check_dense(tensor)


@pytest.mark.parametrize("tensor", [TABLE[:, 1], TABLE[::2], TABLE[:, :2], torch.ones(1).expand(3), TABLE[:, 1:].t()])
def test_holes_and_overlaps_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="is a view with holes or overlaps"):
        _check_arguments([[tensor], dist.AllreduceOptions()])


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(ConfigError, match="sparse_coo can't be reduced"):
        check_dense(TABLE.to_sparse())


@pytest.mark.parametrize("op", ["allreduce", "broadcast"])
def test_the_group_refuses_before_anything_is_sent(op: str) -> None:
    group = ProcessGroupGloo()
    with pytest.raises(ConfigError, match="holes"):
        getattr(group, op)([TABLE[:, 1]])
