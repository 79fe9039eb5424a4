"""NCCL on real GPUs. Skipped where there is none, CI included. On a machine with GPUs (PyTorch >= 2.11 with CUDA)::

    pytest -v -rs -m gpu tests/torch/comm

NCCL refuses two members on one GPU, so what takes several members needs two. What one GPU shows is in
tests/extended/gpu/groups.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch

from tests.torch.comm.conformance import LONG, SOON, Meeting, ramp, total
from tests.torch.comm.members import each, several, together
from tests.util import scaled, wait_for
from torchft_x.comm import ProcessGroupBabyNCCL, ProcessGroupNCCL
from torchft_x.comm.base import ProcessGroup
from torchft_x.errors import CollectiveError

pytestmark = pytest.mark.gpu(1)

Pair = list[ProcessGroup]


def test_group_of_one() -> None:
    for group in (ProcessGroupNCCL(scaled(LONG)), ProcessGroupBabyNCCL(scaled(LONG))):
        group.configure("", "a", 0, 1, 1)
        t = ramp(0).cuda()
        assert group.allreduce([t]).wait()
        assert torch.equal(t.cpu(), ramp(0))
        assert group.errored() is None
        group.shutdown()


@pytest.fixture(params=[ProcessGroupNCCL, ProcessGroupBabyNCCL])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with several(2, lambda: request.param(scaled(LONG))) as groups:
        yield groups


def connect(groups: Pair, address: str, quorum_id: int) -> None:
    def configure(rank: int) -> None:
        torch.cuda.set_device(rank)
        groups[rank].configure(address, f"replica{rank}", rank, len(groups), quorum_id)

    together([lambda rank=rank: configure(rank) for rank in range(len(groups))])


def reduced(rank: int, group: ProcessGroup) -> torch.Tensor:
    torch.cuda.set_device(rank)
    t = ramp(rank).cuda()
    group.allreduce([t]).wait()
    assert group.errored() is None
    return t.cpu()


@pytest.mark.gpu(2)
def test_sums_again_and_again(pair: Pair, meeting: Meeting) -> None:
    for number in range(3):
        connect(pair, meeting(), number)
        for t in each(pair, reduced):
            assert torch.equal(t, total(2))


@pytest.mark.gpu(2)
def test_abort_releases_the_stream(pair: Pair, meeting: Meeting) -> None:
    connect(pair, meeting(), 1)
    each(pair, reduced)
    torch.cuda.set_device(0)
    work = pair[0].allreduce([ramp(0).cuda()])
    start = time.monotonic()
    pair[0].abort(1)
    with pytest.raises(CollectiveError):
        work.wait()
    torch.cuda.synchronize()
    assert time.monotonic() - start < scaled(SOON)
    pair[1].abort(1)
    connect(pair, meeting(), 2)
    each(pair, reduced)


@pytest.mark.gpu(2)
def test_a_collective_nobody_joins_ends_at_its_timeout(pair: Pair, meeting: Meeting) -> None:
    connect(pair, meeting(), 1)
    each(pair, reduced)
    torch.cuda.set_device(0)
    try:
        pair[0].allreduce([ramp(0).cuda()]).wait(timedelta(seconds=1))
    except CollectiveError:
        pass  # of a group in a child process
    error = wait_for(lambda: pair[0].errored(), what="the end of the collective")
    assert "allreduce" in str(error)
    pair[1].abort(1)
    connect(pair, meeting(), 2)
    each(pair, reduced)
