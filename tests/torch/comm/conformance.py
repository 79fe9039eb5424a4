"""Conformance tests of process groups. Each kind of group has a subclass that defines `make`.

`Conformance` applies to groups with a single member, too. `Configuring` adds how members meet at a store, `Together`
the release of a collective that waits for other members.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, Work

from tests.torch.comm.members import Nursery, configure, each, several, together
from tests.util import scaled, wait_for
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.handles import ReconfigureOptions
from torchft_x.errors import CollectiveError, DeadlineError

Members = list[ProcessGroup]
Meeting = Callable[[], str]
LONG = 60.0  # a timeout that no test may reach
SOON = 5.0  # seconds that "at once" may take on a busy machine
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]


def ramp(rank: int, n: int = 6) -> torch.Tensor:
    """Return n numbers that differ from rank to rank."""
    return torch.arange(n, dtype=torch.float32) + 10 * rank


def ramps(size: int, n: int = 6) -> torch.Tensor:
    return torch.stack([ramp(rank, n) for rank in range(size)])


def total(size: int, n: int = 6) -> torch.Tensor:
    return ramps(size, n).sum(0)


Issue = Callable[[ProcessGroup, torch.Tensor, int, int], Work]  # (group, memory for 6 numbers of each, rank, size)
COLLECTIVES: dict[str, tuple[Issue, Callable[[int, int], torch.Tensor]]] = {
    # name: (function that issues it, expected content of the memory)
    "allgather": (
        lambda group, out, rank, size: group.allgather([list(out.chunk(size))], [ramp(rank)]),
        lambda rank, size: ramps(size),
    ),
    "allgather_into_tensor_coalesced": (
        lambda group, out, rank, size: group.allgather_into_tensor_coalesced([out], [ramp(rank)]),
        lambda rank, size: ramps(size),
    ),
    "alltoall_base": (
        lambda group, out, rank, size: group.alltoall_base(out[:size], ramp(rank, size), [], []),
        lambda rank, size: ramps(size, size)[:, rank],
    ),
    "reduce_scatter": (
        lambda group, out, rank, size: group.reduce_scatter([out[:6]], [[ramp(rank) + 100 * i for i in range(size)]]),
        lambda rank, size: total(size) + 100 * rank * size,
    ),
    "reduce_scatter_tensor_coalesced": (
        lambda group, out, rank, size: group.reduce_scatter_tensor_coalesced([out[:3]], [ramp(rank, 3 * size)]),
        lambda rank, size: total(size, 3 * size)[3 * rank : 3 * rank + 3],
    ),
    "allreduce_coalesced": (
        lambda group, out, rank, size: group.allreduce_coalesced(
            [out[:4].copy_(ramp(rank, 4)), out[4:6].copy_(ramp(rank, 2))]
        ),
        lambda rank, size: torch.cat([total(size, 4), total(size, 2)]),
    ),
    "barrier": (lambda group, out, rank, size: group.barrier(), lambda rank, size: torch.zeros(0)),
}


def wait_error(work: Work, within: float = SOON) -> CollectiveError:
    """Return the error that wait() raises, which it must do within so many seconds."""
    start = time.monotonic()
    with pytest.raises(CollectiveError) as raised:
        work.wait()
    assert time.monotonic() - start < scaled(within)
    return raised.value


class Conformance:
    """Tests for every process group. Subclass it, name the class ``Test...``, and define `make`."""

    sizes: tuple[int, ...] = (1, 2, 3)
    reports_failures = True  # whether wait() raises after a failure
    dtypes: list[str] = DTYPES
    shuts_down = True  # whether shutdown() ends the group; False: the group has another owner
    backend = "torchft-gloo"

    def make(self) -> ProcessGroup:
        raise AssertionError("say how to make one")

    @pytest.fixture
    def members(self, request: pytest.FixtureRequest, meeting: Meeting) -> Iterator[Members]:
        with several(request.param, self.make) as groups:
            configure(groups, meeting(), 7)
            yield groups

    # -- collectives --

    @pytest.mark.parametrize("op", ["SUM", "AVG", "MIN", "MAX"])
    def test_allreduce_with_an_operation_or_options(self, members: Members, op: str) -> None:
        def run(rank: int, group: ProcessGroup) -> list[torch.Tensor]:
            bare, within, by_torch = (ramp(rank) for _ in range(3))
            options = dist.AllreduceOptions()
            options.reduceOp = getattr(ReduceOp, op)
            group.allreduce([bare], getattr(ReduceOp, op)).wait()
            group.allreduce([within], options).wait()
            dist.all_reduce(by_torch, op=getattr(ReduceOp, op), group=group)
            dist.barrier(group=group)
            return [bare, within, by_torch]

        everyone = ramps(len(members))
        want = {"SUM": everyone.sum(0), "AVG": everyone.mean(0), "MIN": everyone.amin(0), "MAX": everyone.amax(0)}[op]
        for bare, *others in each(members, run):
            assert torch.allclose(bare, want)
            assert all(torch.equal(bare, other) for other in others)

    def test_allreduce_of_every_dtype(self, members: Members) -> None:
        def run(rank: int, group: ProcessGroup) -> list[torch.Tensor]:
            tensors = [torch.tensor([[rank, 1], [2, 3]]).to(getattr(torch, name)) for name in self.dtypes]
            for work in [group.allreduce([t]) for t in tensors]:
                work.wait()
            return tensors

        size = len(members)
        for tensors in each(members, run):
            for t in tensors:
                assert t.tolist() == [[sum(range(size)), size], [2 * size, 3 * size]], t.dtype

    def test_scalars_and_parts_of_a_tensor(self, members: Members) -> None:
        def run(rank: int, group: ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
            whole, scalar = torch.zeros(10), torch.tensor(float(rank))
            whole[3:7] = 1 + rank
            group.allreduce([whole[3:7]]).wait()
            group.allreduce([scalar]).wait()
            return whole, scalar

        size = len(members)
        for whole, scalar in each(members, run):
            assert whole.tolist() == [0.0] * 3 + [size * (size + 1) / 2] * 4 + [0.0] * 3
            assert scalar.item() == sum(range(size))

    def test_a_work_that_is_done_stays_done_and_its_future_calls_back(self, members: Members) -> None:
        def run(rank: int, group: ProcessGroup) -> list[torch.Tensor]:
            t, late = ramp(rank), ramp(rank)
            work = group.allreduce([t])
            assert work.wait(timedelta(seconds=scaled(LONG)))
            assert work.wait()
            assert work.is_completed()
            work.get_future().wait()
            value, seen = group.allreduce([late]).get_future().then(lambda f: (f.value(), late.clone())).wait()
            return [t, value[0] if isinstance(value, list) else value, seen]

        for tensors in each(members, run):
            assert all(torch.equal(t, total(len(members))) for t in tensors)

    def test_many_in_flight_end_in_order(self, members: Members) -> None:
        def run(rank: int, group: ProcessGroup) -> list[torch.Tensor]:
            tensors = [torch.full((1000,), float(rank + i)) for i in range(20)]
            for work in [group.allreduce([t]) for t in tensors]:
                work.wait()
            return tensors

        size = len(members)
        for tensors in each(members, run):
            assert [t[-1].item() for t in tensors] == [sum(range(size)) + size * i for i in range(20)]

    @pytest.mark.parametrize("op", COLLECTIVES)
    def test_a_collective_with_outputs(self, members: Members, op: str) -> None:
        size = len(members)
        issue, want = COLLECTIVES[op]

        def run(rank: int, group: ProcessGroup) -> torch.Tensor:
            out = torch.zeros(6 * size)
            issue(group, out, rank, size).wait()
            return out

        for rank, out in enumerate(each(members, run)):
            expected = want(rank, size).reshape(-1)
            assert torch.equal(out[: expected.numel()], expected)

    def test_broadcast_from_each_root(self, members: Members) -> None:
        for root in range(len(members)):

            def run(rank: int, group: ProcessGroup, root: int = root) -> tuple[torch.Tensor, torch.Tensor]:
                parameter, listed = torch.nn.Parameter(ramp(rank)), ramp(rank)
                with torch.no_grad():
                    group.broadcast_one(parameter, root).wait()
                options = dist.BroadcastOptions()
                options.rootRank = root
                group.broadcast([listed], options).wait()
                return parameter.detach(), listed

            for one, listed in each(members, run):
                assert torch.equal(one, ramp(root))
                assert torch.equal(listed, ramp(root))

    def test_send_and_recv_in_a_ring(self, members: Members) -> None:
        size = len(members)
        if size == 1:
            work = members[0].send([ramp(0)], 0, 1)
            if self.reports_failures:
                with pytest.raises(RuntimeError, match="another member"):
                    work.wait()
            return

        def run(rank: int, group: ProcessGroup) -> torch.Tensor:
            out = torch.zeros(6)
            works = [group.send([ramp(rank)], (rank + 1) % size, 3), group.recv([out], (rank - 1) % size, 3)]
            for work in works:
                work.wait()
            return out

        for rank, out in enumerate(each(members, run)):
            assert torch.equal(out, ramp((rank - 1) % size))

    # -- start and end --

    def test_size_rank_and_name(self, members: Members) -> None:
        assert [group.rank() for group in members] == list(range(len(members)))
        assert {group.size() for group in members} == {len(members)}
        assert members[0].getBackendName() == self.backend

    def test_after_an_abort_nothing_is_started_until_configure(self, members: Members, meeting: Meeting) -> None:
        members[0].abort(7)
        assert "abort" in str(members[0].errored())
        work = members[0].barrier()
        if self.reports_failures:
            with pytest.raises(RuntimeError, match="aborted"):
                work.wait()
            with pytest.raises(RuntimeError, match="aborted"):
                members[0].barrier().get_future().wait()
        else:
            work.wait()
        configure(members, meeting(), 8)
        assert members[0].errored() is None
        each(members, lambda rank, group: group.barrier().wait())

    def test_shutdown_ends_it_and_configure_begins_again(self, members: Members, meeting: Meeting) -> None:
        if not self.shuts_down:
            members[0].shutdown()
            each(members, lambda rank, group: group.barrier().wait())
            return
        for group in members:
            group.shutdown()
            group.shutdown()
        self.fails(members[0], members[0].barrier())
        configure(members, meeting(), 8)
        each(members, lambda rank, group: group.barrier().wait())

    def test_reconfigured_by_handles(self, members: Members) -> None:
        """Check that the rank is the position of the own handle, here in reverse order."""
        handles = [group.get_reconfigure_handle() for group in reversed(members)]
        assert all(group.supports_reconfigure for group in members)
        options = ReconfigureOptions(uuid=99, handles=handles, timeout=timedelta(seconds=scaled(LONG)))
        each(members, lambda rank, group: group.reconfigure(options).wait())
        assert [group.rank() for group in members] == list(reversed(range(len(members))))
        each(members, lambda rank, group: group.allreduce([ramp(rank)]).wait())
        members[0].abort(98)
        assert all(group.errored() is None for group in members)
        members[0].abort(99)
        assert members[0].errored() is not None

    def fails(self, group: ProcessGroup, work: Work, within: float = SOON) -> Exception:
        if self.reports_failures:
            return wait_error(work, within)
        start = time.monotonic()
        assert not work.wait() or work.is_completed()
        error = group.errored()
        assert time.monotonic() - start < scaled(within)
        assert error is not None
        return error


class Configuring(Conformance):
    @pytest.fixture
    def trio(self) -> Iterator[Members]:
        groups = [self.make() for _ in range(3)]
        for group in groups:
            group.set_timeout(scaled(LONG))
        yield groups
        for group in groups:
            self.end(group)

    def end(self, group: ProcessGroup) -> None:
        group.shutdown()

    def test_abort_ends_a_running_configure(self, trio: Members, meeting: Meeting) -> None:
        threading.Timer(0.1, trio[0].abort, [1]).start()
        start = time.monotonic()
        with pytest.raises(CollectiveError, match="aborted"):
            trio[0].configure(meeting(), "a", 0, 2, 1)
        assert time.monotonic() - start < scaled(SOON)
        configure(trio, meeting(), 2)
        each(trio, lambda rank, group: group.barrier().wait())

    def test_configure_without_the_others_ends_at_its_timeout(self, trio: Members, meeting: Meeting) -> None:
        trio[0].set_timeout(1.0)
        start = time.monotonic()
        with pytest.raises(DeadlineError, match="ranks 0, 2 did not come"):
            trio[0].configure(meeting(), "a", 1, 3, 9)
        assert time.monotonic() - start < scaled(SOON)
        assert trio[0].errored() is not None


class Together(Configuring):
    elsewhere = "ProcessGroupGloo"  # the class of `torchft_x.comm` that members in other processes have

    # -- other members --

    def test_other_members_each_time(self, trio: Members, meeting: Meeting) -> None:
        a, b, c = trio
        for number, members in enumerate([[a, b, c], [c, a], [b], [b, c, a], [a, b]]):
            configure(members, meeting(), number)
            for t in each(members, self.sum):
                assert torch.equal(t, total(len(members)))

    def sum(self, rank: int, group: ProcessGroup) -> torch.Tensor:
        t = ramp(rank)
        group.allreduce([t]).wait()
        return t

    # -- abort --

    def test_abort_releases_every_waiting_collective(self, trio: Members, meeting: Meeting) -> None:
        configure(trio, meeting(), 3)
        works = [trio[0].allreduce([ramp(0)]), trio[0].allreduce([torch.ones(1_000_000)]), trio[0].barrier()]
        future = trio[0].allreduce([ramp(0)]).get_future()
        threading.Timer(0.05, trio[0].abort, [3]).start()
        for work in works:
            self.fails(trio[0], work)
        if self.reports_failures:
            with pytest.raises(RuntimeError):
                future.wait()
        assert "aborted" in str(trio[0].errored())

    def test_abort_of_one_frees_all(self, trio: Members, meeting: Meeting) -> None:
        configure(trio, meeting(), 3)
        waits = [lambda group=group: self.fails(group, group.allreduce([ramp(0)])) for group in trio[:2]]
        threading.Timer(0.05, trio[2].abort).start()
        for error in together(waits):
            assert "allreduce on rank" in str(error)

    def test_late_abort_spares_the_next_configuration(self, trio: Members, meeting: Meeting) -> None:
        configure(trio, meeting(), 5)
        configure(trio, meeting(), 6)
        works = [group.allreduce([ramp(rank)]) for rank, group in enumerate(trio[:2])]
        for group in trio:
            group.abort(5)
        works.append(trio[2].allreduce([ramp(2)]))
        each(trio, lambda rank, group: works[rank].wait())
        assert all(group.errored() is None for group in trio)

    def test_configure_releases_what_still_runs(self, trio: Members, meeting: Meeting) -> None:
        configure(trio[:2], meeting(), 1)
        work = trio[0].allreduce([ramp(0)])
        trio[0].configure("", "a", 0, 1, 2)
        if self.reports_failures:
            assert "configured anew" in str(self.fails(trio[0], work))
        else:
            assert not work.wait()
            trio[0].configure("", "a", 0, 1, 3)
        assert trio[0].errored() is None
        assert trio[0].allreduce([ramp(0)]).wait()

    # -- deadlines --

    def test_collective_ends_at_the_groups_timeout(self, trio: Members, meeting: Meeting) -> None:
        configure(trio[:2], meeting(), 1)
        trio[0].set_timeout(0.2)
        assert "imed out" in str(self.fails(trio[0], trio[0].allreduce([ramp(0)])))

    def test_limit_given_to_wait(self, trio: Members, meeting: Meeting) -> None:
        """Check that the group is aborted, and that nothing writes to the tensor afterwards."""
        configure(trio[:2], meeting(), 1)
        t = ramp(0)
        work = trio[0].allreduce([t])
        if self.reports_failures:
            with pytest.raises(CollectiveError, match=r"after the limit given to wait\(\)"):
                work.wait(timedelta(seconds=0.05))
        else:
            assert not work.wait(timedelta(seconds=0.05))
        assert work.is_completed()
        before = t.clone()
        self.fails(trio[1], trio[1].allreduce([ramp(1)]))
        assert torch.equal(t, before)
        assert trio[0].errored() is not None

    # -- a member in another process dies, or stands still --

    def test_killed_member_releases_the_others(self, trio: Members, meeting: Meeting, nursery: Nursery) -> None:
        pid = self.join(trio[0], meeting(), nursery)
        work = trio[0].allreduce([ramp(0)])
        os.kill(pid, signal.SIGKILL)
        assert "allreduce on rank 0 of 2 of configuration 7 failed" in str(self.fails(trio[0], work))
        trio[0].configure("", "replica0", 0, 1, 8)
        assert trio[0].allreduce([ramp(0)]).wait()

    def test_stopped_member_does_not_hold_up_an_abort(self, trio: Members, meeting: Meeting, nursery: Nursery) -> None:
        pid = self.join(trio[0], meeting(), nursery)
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: _is_stopped(pid), what="the member to be stopped")
        work = trio[0].allreduce([torch.ones(5_000_000)])
        threading.Timer(0.2, trio[0].abort, [7]).start()
        assert "aborted" in str(self.fails(trio[0], work))
        trio[0].configure("", "replica0", 0, 1, 8)
        assert trio[0].allreduce([ramp(0)]).wait()

    def join(self, group: ProcessGroup, address: str, nursery: Nursery) -> int:
        pid = nursery.member(self.elsewhere, address, 1, 2, 7)
        group.configure(address, "replica0", 0, 2, 7)
        assert nursery.line() == "ready"
        return pid


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"
