"""Groups in child processes: the suite, what a child's death looks like, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.torch.comm.conformance import LONG, Meeting, Together, ramp, wait_error
from tests.torch.comm.members import configure, each, several
from tests.util import scaled, wait_for
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.subprocess.group import ProcessGroupBaby, ProcessGroupBabyGloo
from torchft_x.errors import ConfigError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="groups in a child process need Linux; run this on a Linux machine"
)


class TestBabyGloo(Together):
    backend = "torchft-baby-gloo"

    def make(self) -> ProcessGroup:
        return ProcessGroupBabyGloo(timedelta(seconds=scaled(10)), host="127.0.0.1")


@pytest.fixture
def pair() -> Iterator[list[ProcessGroupBabyGloo]]:
    with several(2, lambda: ProcessGroupBabyGloo(scaled(LONG), host="127.0.0.1")) as groups:
        yield groups


def children(of: int) -> list[int]:
    """Processes that run, have ended and aren't reaped yet, or will run, below a process."""
    found: list[int] = []
    for task in os.listdir(f"/proc/{of}/task"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            found += [int(pid) for pid in Path(f"/proc/{of}/task/{task}/children").read_text().split()]
    return found


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def helper() -> int:
    """The process that forks our groups' children."""
    for pid in children(os.getpid()):
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
            if "torchft_x.comm.subprocess" in f.read():
                return pid
    raise AssertionError("there is no helper process")


# -- a child that dies --


def test_differing_sizes_kill_the_children_and_not_us(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    """gloo answers a size mismatch with SIGABRT."""
    configure(pair, meeting(), 4)
    tensors = [torch.ones(10), torch.ones(200_000)]
    errors = each(pair, lambda rank, group: wait_error(group.allreduce([tensors[rank]])))
    told = [str(e) for e in errors if "SIGABRT" in str(e)]
    assert told, errors
    assert "allreduce was released" in told[0]
    assert "make all members issue the same" in told[0]
    assert torch.equal(tensors[0], torch.ones(10)), "a failed collective leaves the tensors as they were"
    configure(pair, meeting(), 5)
    each(pair, lambda rank, group: group.allreduce([torch.ones(10)]).wait())


def test_killed_child(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    configure(pair, meeting(), 4)
    before = set(children(helper()))
    configure(pair[:1], meeting(), 4)
    configure(pair, meeting(), 5)
    work = pair[0].allreduce([ramp(0)])
    for pid in set(children(helper())) - before:
        os.kill(pid, signal.SIGKILL)
    assert "SIGKILL; configure() starts a new one" in str(wait_error(work))
    assert "not started" in str(wait_error(pair[0].barrier()))
    configure(pair, meeting(), 6)
    each(pair, lambda rank, group: group.barrier().wait())


def test_stopped_child_is_ended_by_an_abort(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    configure(pair, meeting(), 4)
    stopped = children(helper())
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    work = pair[0].allreduce([ramp(0)])
    pair[0].abort(4)
    assert "aborted" in str(wait_error(work))
    pair[1].abort(4)
    wait_for(lambda: not any(map(is_alive, stopped)), what="the end of the stopped children")
    configure(pair, meeting(), 5)
    each(pair, lambda rank, group: group.barrier().wait())


def test_a_child_that_reads_nothing_is_ended(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    configure(pair, meeting(), 4)
    for pid in children(helper()):
        os.kill(pid, signal.SIGSTOP)
    pair[0].set_timeout(0.1)
    while pair[0].errored() is None:
        work = pair[0].barrier()
    assert "SIGKILL; configure() starts a new one" in str(wait_error(work))


def test_an_interrupt_is_for_the_trainer(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    """Ctrl-C in a terminal reaches all processes."""
    configure(pair, meeting(), 4)
    for pid in [helper(), *children(helper())]:
        os.kill(pid, signal.SIGINT)
    each(pair, lambda rank, group: group.barrier().wait())
    configure(pair, meeting(), 5)
    each(pair, lambda rank, group: group.barrier().wait())


# -- what is left behind --


def test_many_configurations_leave_nothing(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    def settled() -> tuple[int, int, int]:
        return len(children(helper())), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def once(number: int) -> None:
        configure(pair, meeting(), number)
        works = [group.allreduce([torch.ones(100_000)]) for group in pair[: 1 + number % 2]]
        if len(works) == 1:
            pair[0].abort()
            wait_error(works[0])
        for work in works[1:] and works:
            work.wait()

    for number in range(4):
        once(number)
    before = wait_for(lambda: (now := settled())[0] <= 2 and now, what="the end of old children")
    for number in range(20):
        once(4 + number)
    wait_for(
        lambda: all(now <= then + 4 for now, then in zip(settled(), before, strict=True)), what=f"at most {before}"
    )
    assert pair[0].num_active_work() == 0


def test_active_work_is_counted(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    assert pair[0].num_active_work() == 0
    configure(pair, meeting(), 4)
    works = [pair[0].allreduce([ramp(0)]) for _ in range(3)]
    assert pair[0].num_active_work() == 3
    works += [pair[1].allreduce([ramp(1)]) for _ in range(3)]
    for work in works:
        work.wait()
    assert [group.num_active_work() for group in pair] == [0, 0]


# -- sentences --


def test_the_common_part_is_no_group() -> None:
    with pytest.raises(ConfigError, match="use ProcessGroupBabyGloo"):
        ProcessGroupBaby()


def test_a_child_has_no_socket_of_the_trainer(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        os.kill(lost := helper(), signal.SIGKILL)
        os.waitid(os.P_PID, lost, os.WEXITED | os.WNOWAIT)  # else one of two threads may ask it for a child
        configure(pair, meeting(), 1)
        for pid in [helper(), *children(helper())]:
            held = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
            assert held
            assert f"socket:[{os.fstat(listener.fileno()).st_ino}]" not in held


def test_arguments_at_the_edge(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    assert "call configure()" in str(wait_error(pair[0].barrier()))
    configure(pair, meeting(), 1)
    each(pair, lambda rank, group: group.allreduce([torch.ones(0)]).wait())
    assert "cannot pickle" in str(wait_error(pair[0].allreduce([ramp(0)], threading.Lock())))
    configure(pair, meeting(), 2)
    assert "PREMUL_SUM" in str(wait_error(pair[0].allreduce([ramp(0)], dist.ReduceOp.PREMUL_SUM)))
    assert pair[0].errored() is not None
