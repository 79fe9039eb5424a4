"""Wrappers of users that create torch groups themselves, as the peer's do with ``_create_pg``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, Work

from tests.torch.comm.conformance import Together, ramp, total
from tests.torch.comm.members import configure, each, several
from tests.util import clock
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.wrappers.process_groups import ProcessGroupWrapper
from torchft_x.errors import CollectiveError, ConfigError


class Own(ProcessGroupWrapper):
    def __init__(self) -> None:
        super().__init__(timedelta(seconds=clock(4.0)))
        self.created: list[tuple[int, int]] = []

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        self.created.append((rank, world_size))
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        backend = dist.ProcessGroupGloo(store, rank, world_size, self._timeout)
        backend._set_sequence_number_for_group()
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
        return group

    def getBackendName(self) -> str:
        return "own-gloo"


class TestOwn(Together):
    sizes = (2,)
    backend = "own-gloo"

    # Of another process these make a ProcessGroupGloo, whose members connect otherwise; and a torch group of somebody else's
    # can't be kept from writing into tensors that are left to it.
    test_killed_member_releases_the_others = None  # type: ignore[assignment]
    test_stopped_member_does_not_hold_up_an_abort = None  # type: ignore[assignment]
    test_limit_given_to_wait = None  # type: ignore[assignment]

    def make(self) -> ProcessGroupWrapper:
        return Own()


class Hooked(Own):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def _opts_hook(self, opts: Any) -> Any:
        self.seen.append(type(opts).__name__)
        return opts

    def _wrap_work(self, work: Work, opts: Any) -> Work:
        self.seen.append("wrapped")
        return work

    @contextlib.contextmanager
    def _run_context(self) -> Iterator[None]:
        self.seen.append("in")
        yield
        self.seen.append("out")


def test_the_other_hooks_are_called(meeting: Callable[[], str]) -> None:
    def run(rank: int, group: Hooked) -> torch.Tensor:
        t = ramp(rank)
        group.allreduce([t]).wait()
        group.allreduce([t], ReduceOp.MAX).wait()
        group.barrier().wait()
        return t

    with several(2, Hooked) as groups:
        configure(groups, meeting(), 7)
        for t in each(groups, run):
            assert torch.equal(t, total(2))
    assert groups[0].created == [(0, 2)]
    names = [name for name in groups[0].seen if name not in ("in", "out", "wrapped")]
    assert names == ["AllreduceOptions", "RedOpType", "BarrierOptions"]
    assert groups[0].seen[:4] == ["in", "AllreduceOptions", "wrapped", "out"]


def test_what_create_raises_is_told(meeting: Callable[[], str]) -> None:
    class Broken(Own):
        def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
            raise RuntimeError("no such fabric")

    def fails(group: Broken) -> None:
        with pytest.raises(CollectiveError, match=r"Configuring rank . of 2.*no such fabric"):
            group.configure(where, "a", groups.index(group), 2, 7)

    where, groups = meeting(), [Broken(), Broken()]
    each(groups, lambda rank, group: fails(group))


def test_a_wrapper_around_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a process group to wrap, or a _create_pg"):
        ProcessGroupWrapper()


def test_groups_that_connect_themselves_say_that_they_are_not_the_place_for_it() -> None:
    with pytest.raises(ConfigError, match="ProcessGroupWrapper"):

        class Odd(ProcessGroupGloo):
            def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
                return None
