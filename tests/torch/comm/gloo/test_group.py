"""Failures of the gloo group: what releases a wait, how fast, and what is left behind."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.torch.comm.conformance import LONG, Meeting, Together, ramp, wait_error
from tests.torch.comm.members import configure, each, several, together
from tests.torch.train.fakes import background
from tests.util import scaled, wait_for
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.errors import AddressError, CollectiveError, ConfigError
from torchft_x.timing import POLL


class TestGloo(Together):
    def make(self) -> ProcessGroup:
        return ProcessGroupGloo(timedelta(seconds=scaled(10)), host="127.0.0.1")


def long() -> ProcessGroupGloo:
    return ProcessGroupGloo(LONG, host="127.0.0.1")


@pytest.fixture
def trio() -> Iterator[list[ProcessGroupGloo]]:
    with several(3, long) as groups:
        yield groups


# -- abort --


def test_failure_names_the_member(trio: list[ProcessGroupGloo], meeting: Meeting) -> None:
    configure(trio[:2], meeting(), 4)
    wait_for(lambda: trio[0]._generations.present._members, what="the members' names")  # type: ignore[union-attr]
    work = trio[0].allreduce([ramp(0)])
    trio[1].abort()
    error = wait_error(work)
    assert "allreduce on rank 0 of 2 of configuration 4 failed" in str(error)
    assert "rank 1 (replica1)" in str(error)
    assert error.suspects == ("replica1",)
    again = wait_error(trio[0].broadcast([ramp(0)]))
    assert str(again).startswith("broadcast was not started")


def test_abort_leaves_other_groups_of_the_process_alone(trio: list[ProcessGroupGloo], meeting: Meeting) -> None:
    configure(trio, meeting(), 1)
    with several(3, long) as others:
        configure(others, meeting(), 1)
        running = [others[rank].allreduce([ramp(rank)]) for rank in range(2)]
        for group in trio:
            group.abort()
        running.append(others[2].allreduce([ramp(2)]))
        for work in running:
            assert work.wait()


def test_a_collective_torch_refuses_ends_the_group(trio: list[ProcessGroupGloo], meeting: Meeting) -> None:
    configure(trio[:2], meeting(), 1)
    wait_error(trio[0].allreduce([ramp(0)], dist.ReduceOp.BAND))
    assert trio[0].errored() is not None
    wait_error(trio[0].barrier())


def test_before_configure_nothing_is_started() -> None:
    group = ProcessGroupGloo(host="127.0.0.1")
    assert "call configure()" in str(wait_error(group.barrier()))
    group.abort()
    group.shutdown()


# -- configure --


def test_late_abort_does_not_end_a_running_configure(trio: list[ProcessGroupGloo], meeting: Meeting) -> None:
    configure(trio[:2], meeting(), 1)
    address = meeting()

    def second() -> None:
        wait_for(lambda: trio[0]._generations.present.config_id == 2, what="rank 0's configure")  # type: ignore[union-attr]
        trio[0].abort(1)
        trio[1].configure(address, "b", 1, 2, 2)

    together([lambda: trio[0].configure(address, "a", 0, 2, 2), second])
    each(trio[:2], lambda rank, group: group.barrier().wait())


def test_a_newer_configure_ends_an_older_one(trio: list[ProcessGroupGloo], meeting: Meeting) -> None:
    def newer() -> None:
        wait_for(lambda: trio[0]._generations.present is not None, what="the older configure")
        trio[0].configure("", "a", 0, 1, 2)

    def older() -> None:
        with pytest.raises(CollectiveError, match="configured anew"):
            trio[0].configure(meeting(), "a", 0, 2, 1)

    together([older, newer])
    assert trio[0].errored() is None


def test_bad_arguments() -> None:
    with pytest.raises(AddressError, match=r"203\.0\.113\.7.*TORCHFT_X_ADVERTISE_HOST"):
        ProcessGroupGloo(host="203.0.113.7")
    with pytest.raises(ConfigError, match="positive"):
        ProcessGroupGloo(0)
    group = ProcessGroupGloo(host="127.0.0.1")
    with pytest.raises(ConfigError, match=r"Rank 2 is not in 0\.\.1"):
        group.configure("h:1/x", "a", 2, 2)
    with pytest.raises(AddressError):
        group.configure("nonsense", "a", 0, 2)
    group.shutdown()


# -- what is left behind --


def test_many_configurations_leave_nothing(trio: list[ProcessGroupGloo], meeting: Meeting) -> None:
    pair = trio[:2]

    def once(number: int) -> None:
        configure(pair, meeting(), number)
        if number % 3 == 0:
            work = pair[0].allreduce([ramp(0)])
            pair[0].abort(number)
            wait_error(work)
        else:
            each(pair, lambda rank, group: group.allreduce([ramp(rank)]).wait())

    def settled() -> tuple[int, int]:
        wait_for(
            lambda: all(thread.name != "torchft_x gloo" for thread in threading.enumerate()),
            what="the end of the background threads",
        )
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    for number in range(20):
        once(number)
    before = settled()
    for number in range(100):
        once(20 + number)
    # A few connections and threads may be on their way in or out; a hundred configurations would leave hundreds.
    wait_for(
        lambda: all(now <= then + 12 for now, then in zip(settled(), before, strict=True)), what=f"at most {before}"
    )


def test_forgotten_group_releases_its_members(trio: list[ProcessGroupGloo], meeting: Meeting) -> None:
    pair = [trio[0], long()]
    configure(pair, meeting(), 1)
    work = trio[0].allreduce([ramp(0)])
    del pair
    gc.collect()
    wait_error(work)


def test_a_handle_does_not_keep_its_group(trio: list[ProcessGroupGloo], meeting: Meeting) -> None:
    pair = [trio[0], long()]
    configure(pair, meeting(), 1)
    work, group = pair[1].allreduce([ramp(1)]), weakref.ref(pair.pop())
    gc.collect()
    assert group() is None
    wait_error(work)


def test_a_receive_waits_longer_than_a_look(trio: list[ProcessGroupGloo], meeting: Meeting) -> None:
    """gloo closes the connection under the wait of a send or receive that ends before it."""
    configure(trio[:2], meeting(), 1)
    got = torch.zeros(3)
    receive = trio[0].recv([got], 1)
    received = background(receive.wait)
    with pytest.raises(TimeoutError):
        received.result(4 * POLL)
    assert trio[1].send([torch.ones(3)], 0).wait()
    assert received.result(scaled(20))
    assert got.tolist() == [1.0] * 3


def test_a_receive_tells_that_its_limit_ran_out(trio: list[ProcessGroupGloo], meeting: Meeting) -> None:
    configure(trio[:2], meeting(), 1)
    with pytest.raises(CollectiveError, match=r"recv on .* timed out after the limit given to wait"):
        trio[0].recv([torch.zeros(3)], 1).wait(timedelta(seconds=0.2))
