from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import ReduceOp, Work

from tests.torch.comm.conformance import Conformance, Together, ramp
from tests.torch.train.fakes import run_threads
from tests.util import scaled
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.wrappers.process_groups import (
    ErrorSwallowingProcessGroupWrapper,
    FakeProcessGroupWrapper,
    ManagedProcessGroup,
    ProcessGroupDummy,
    ProcessGroupWrapper,
)
from torchft_x.comm.wrappers.reconfigure import reconfigure_with_store
from torchft_x.errors import ConfigError


def gloo() -> ProcessGroup:
    return ProcessGroupGloo(scaled(10.0), host="127.0.0.1")


class Manager:
    """The least a manager is: it reduces on its group, and says how many take part."""

    def __init__(self) -> None:
        self._pg = gloo()
        self.asked: list[Any] = []  # the operations of its reductions

    def allreduce(self, tensor: torch.Tensor, *, reduce_op: Any = ReduceOp.AVG) -> Work:
        self.asked.append(reduce_op)
        return self._pg.allreduce([tensor], reduce_op)

    def num_participants(self) -> int:
        return self._pg.size()


class TestDummy(Conformance):
    """One member only: nothing of `Together`."""

    sizes = (1,)
    backend = "torchft-dummy"

    def make(self) -> ProcessGroup:
        return ProcessGroupDummy()


class TestWrapper(Together):
    sizes = (2,)

    def make(self) -> ProcessGroup:
        return ProcessGroupWrapper(gloo())


class TestErrorSwallowing(Together):
    sizes = (2,)
    reports_failures = False

    def make(self) -> ProcessGroup:
        return ErrorSwallowingProcessGroupWrapper(gloo())


class TestFake(Together):
    sizes = (2,)

    def make(self) -> ProcessGroup:
        return FakeProcessGroupWrapper(gloo())


class TestManaged(Together):
    sizes = (2,)
    shuts_down = False

    def make(self) -> ProcessGroup:
        return ManagedProcessGroup(Manager())

    def end(self, group: ProcessGroup) -> None:
        assert isinstance(group, ManagedProcessGroup)
        group.parent.shutdown()


def configured(group: ProcessGroup) -> ProcessGroup:
    group.configure("", "a", 0, 1, 1)
    return group


def test_dummy_has_one_member() -> None:
    with pytest.raises(ConfigError, match="one member"):
        ProcessGroupDummy(1, 2)
    with pytest.raises(ConfigError, match="one member"):
        ProcessGroupDummy().configure("", "a", 0, 2)


@pytest.mark.parametrize("by_future", [False, True])
def test_swallowed_failure_is_told_and_makes_everything_a_no_op(by_future: bool) -> None:
    inner = FakeProcessGroupWrapper(ProcessGroupDummy())
    group = ErrorSwallowingProcessGroupWrapper(inner)
    configured(group)
    error = RuntimeError("injected")
    inner.report_future_error(error)
    t = ramp(0)
    work = group.allreduce([t])
    if by_future:
        assert work.get_future().wait() == [t]
        assert "injected" in str(group.error())
    else:
        assert work.wait() is False
        assert group.error() is group.errored() is error
    assert group.allreduce([t]).get_future().wait() == [t]
    configured(group)
    assert group.error() is None
    assert group.allreduce([ramp(0)]).wait() is True


def test_reported_error_is_kept_until_configure() -> None:
    group = ErrorSwallowingProcessGroupWrapper(ProcessGroupDummy())
    configured(group)
    first = ValueError("elsewhere")
    group.report_error(first)
    group.report_error(ValueError("later"))
    assert group.error() is first
    configured(group)
    assert group.error() is None


def test_fake_fails_the_next_collective_and_all_after_it() -> None:
    group = FakeProcessGroupWrapper(ProcessGroupDummy())
    configured(group)
    group.report_future_error(ValueError("injected"))
    with pytest.raises(ValueError, match="injected"):
        group.allreduce([ramp(0)]).wait()
    assert "injected" in str(group.errored())
    with pytest.raises(RuntimeError, match="failed before: injected"):
        group.barrier().wait()
    configured(group)
    group.barrier().wait()


def test_fake_fails_the_next_configure_only() -> None:
    group = FakeProcessGroupWrapper(ProcessGroupDummy())
    group.report_configure_error(RuntimeError("no way"))
    with pytest.raises(RuntimeError, match="no way"):
        configured(group)
    configured(group)


def test_managed_all_reduces_ask_the_manager() -> None:
    manager = Manager()
    group = ManagedProcessGroup(manager)
    configured(group)
    torch.distributed.all_reduce(ramp(0), op=ReduceOp.AVG, group=group)
    group.allreduce_coalesced([ramp(0), ramp(0)]).wait()
    group.barrier().wait()
    assert manager.asked == [ReduceOp.AVG, ReduceOp.SUM, ReduceOp.SUM]
    group.shutdown()
    assert manager._pg.errored() is None, "the group is the manager's"
    manager._pg.shutdown()


def test_reconfigure_with_store(meeting: Callable[[], str]) -> None:
    group = gloo()
    reconfigure_with_store(group, meeting(), 0, 1, timeout=3.0)
    assert group.allreduce([ramp(0)]).wait()
    with pytest.raises(ConfigError, match="can't be configured"):
        reconfigure_with_store(object(), "h:1/p", 0, 1)
    group.shutdown()


class Native:
    """A group that is not ours, such as torch's own from 2.14 on: around one of ours here."""

    def __init__(self) -> None:
        self.inner = gloo()

    def get_reconfigure_handle(self) -> str:
        return self.inner.get_reconfigure_handle()

    def reconfigure(self, opts: Any) -> Work:
        return self.inner.reconfigure(opts)


def test_groups_that_are_not_ours_swap_their_handles_in_the_store(meeting: Callable[[], str]) -> None:
    groups, where = [Native(), Native()], [meeting(), meeting()]
    for address in where:  # twice: the second time they have new members
        run_threads(2, lambda rank, at=address: reconfigure_with_store(groups[rank], at, rank, 2, 10.0))
        tensors = [ramp(0), ramp(0)]
        works = [g.inner.allreduce([t]) for g, t in zip(groups, tensors, strict=True)]
        assert all(work.wait() for work in works)
        assert all(torch.equal(t, 2 * ramp(0)) for t in tensors)
    for group in groups:
        group.inner.shutdown()
