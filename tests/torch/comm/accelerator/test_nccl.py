"""Groups on accelerators.

What runs everywhere: what is missing is said, and the frame around the library (meeting, deadlines, errors) is tried with
gloo instead of the library. What needs GPUs is in test_gpu.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.torch.comm.conformance import SOON, Configuring, Meeting, ramp
from tests.torch.comm.members import GlooFrame, configure, each, several
from tests.util import scaled, wait_for
from torchft_x.comm import ProcessGroupBabyNCCL, ProcessGroupBabyXCCL, ProcessGroupNCCL, ProcessGroupXCCL
from torchft_x.comm.base import ProcessGroup
from torchft_x.errors import CollectiveError, ConfigError


class TestFrame(Configuring):
    """Nothing of `Together`: what runs in gloo isn't released by gloo's abort."""

    backend = "torchft-frame"

    def make(self) -> ProcessGroup:
        return GlooFrame(scaled(10))


@pytest.fixture
def pair() -> Iterator[list[GlooFrame]]:
    with several(2, lambda: GlooFrame(scaled(60))) as groups:
        yield groups


class Hanging(dist.Work):
    """A collective on a stream: its wait returns, it never ends."""

    def is_completed(self) -> bool:
        return False

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


def hang(group: GlooFrame) -> None:
    present = group._present
    assert present is not None
    present.group = type("Group", (), {"allreduce": lambda self, *args: Hanging(), "abort": lambda self: None})()


def test_a_collective_that_hangs_on_a_stream_ends_the_group_at_its_timeout(
    pair: list[GlooFrame], meeting: Meeting
) -> None:
    configure(pair, meeting(), 3)
    hang(pair[0])
    pair[0].set_timeout(0.1)
    work = pair[0].allreduce([ramp(0)])
    assert work.wait(), "the thread goes on"
    error = wait_for(lambda: pair[0].errored(), what="the watch")
    assert "allreduce on rank 0 of 2 of configuration 3 timed out after 0.1 s" in str(error)
    with pytest.raises(CollectiveError, match="was released"):
        work.wait()
    with pytest.raises(CollectiveError, match="not started"):
        pair[0].barrier().wait()


def test_limit_given_to_wait_holds_for_the_stream(pair: list[GlooFrame], meeting: Meeting) -> None:
    configure(pair, meeting(), 3)
    hang(pair[0])
    assert pair[0].allreduce([ramp(0)]).wait(timedelta(seconds=0.05))
    start = time.monotonic()
    wait_for(lambda: pair[0].errored(), what="the watch")
    assert time.monotonic() - start < scaled(SOON)


def test_a_late_abort_and_a_late_deadline_spare_the_next_configuration(pair: list[GlooFrame], meeting: Meeting) -> None:
    configure(pair, meeting(), 3)
    hang(pair[0])
    pair[0].allreduce([ramp(0)]).wait(timedelta(seconds=0.05))
    configure(pair, meeting(), 4)
    pair[0].abort(3)
    each(pair, lambda rank, group: group.allreduce([ramp(rank)]).wait())
    hang(pair[0])
    pair[0].set_timeout(0.5)
    pair[0].allreduce([ramp(0)])
    assert pair[0].errored() is None
    error = wait_for(lambda: pair[0].errored(), what="the watch, which the older deadline must not have ended")
    assert "configuration 4 timed out" in str(error)
    assert pair[1].errored() is None


@pytest.mark.parametrize("kind", [ProcessGroupNCCL, ProcessGroupBabyNCCL])
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU; what is missing shows on a machine without one")
def test_without_a_gpu_one_sentence_says_what_is_missing(kind: type[ProcessGroup]) -> None:
    with pytest.raises(ConfigError) as raised:
        kind()
    told = str(raised.value)
    assert told.startswith(f"{kind.__name__} can't be used here: ")
    assert "no CUDA device is to be seen" in told
    assert dist.is_nccl_available() or "is built without NCCL" in told
    assert told.endswith("use ProcessGroupGloo.")


@pytest.mark.parametrize("kind", [ProcessGroupXCCL, ProcessGroupBabyXCCL])
@pytest.mark.skipif(torch.xpu.is_available(), reason="there is an XPU; what is missing shows on a machine without one")
def test_without_an_xpu_one_sentence_says_what_is_missing(kind: type[ProcessGroup]) -> None:
    with pytest.raises(ConfigError, match="no XPU device is to be seen; use ProcessGroupGloo"):
        kind()
