"""What every process group does. A kind of group is tested by a subclass that says how to make one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.comm.members import configure, each
from torchft_x.comm.base import ProcessGroup

Members = list[ProcessGroup]


def ramp(rank: int, n: int = 6) -> torch.Tensor:
    """n numbers that differ from rank to rank."""
    return torch.arange(n, dtype=torch.float32) + 10 * rank


def total(size: int, n: int = 6) -> torch.Tensor:
    return torch.stack([ramp(rank, n) for rank in range(size)]).sum(0)


class Conformance:
    """Subclass it, name it ``Test...``, and write `make`."""

    sizes: tuple[int, ...] = (1, 2, 3)
    reports_failures = True  # whether wait() raises
    backend = "torchft-gloo"

    def make(self) -> ProcessGroup:
        """A new group that isn't configured."""
        raise AssertionError("say how to make one")

    @pytest.fixture
    def members(self, request: pytest.FixtureRequest, meeting: Callable[[], str]) -> Iterator[Members]:
        groups = [self.make() for _ in range(request.param)]
        configure(groups, meeting(), 7)
        yield groups
        for group in groups:
            group.shutdown()

    # -- collectives --

    def test_allreduce_sums_in_place(self, members: Members) -> None:
        def run(rank: int, group: ProcessGroup) -> torch.Tensor:
            t = ramp(rank)
            assert group.allreduce([t]).wait()
            return t

        for t in each(members, run):
            assert torch.equal(t, total(len(members)))

    @pytest.mark.parametrize("op", ["SUM", "AVG", "MIN", "MAX"])
    def test_allreduce_with_an_operation_or_options(self, members: Members, op: str) -> None:
        def run(rank: int, group: ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
            bare, within = ramp(rank), ramp(rank)
            options = dist.AllreduceOptions()
            options.reduceOp = getattr(ReduceOp, op)
            group.allreduce([bare], getattr(ReduceOp, op)).wait()
            group.allreduce([within], options).wait()
            return bare, within

        everyone = torch.stack([ramp(rank) for rank in range(len(members))])
        want = {"SUM": everyone.sum(0), "AVG": everyone.mean(0), "MIN": everyone.amin(0), "MAX": everyone.amax(0)}[op]
        for bare, within in each(members, run):
            assert torch.allclose(bare, want)
            assert torch.equal(bare, within)

    def test_allreduce_coalesced(self, members: Members) -> None:
        def run(rank: int, group: ProcessGroup) -> list[torch.Tensor]:
            tensors = [ramp(rank, 4), ramp(rank, 3)]
            group.allreduce_coalesced(tensors).wait()
            return tensors

        for tensors in each(members, run):
            assert torch.equal(tensors[0], total(len(members), 4))
            assert torch.equal(tensors[1], total(len(members), 3))

    def test_future_has_the_result(self, members: Members) -> None:
        def run(rank: int, group: ProcessGroup) -> torch.Tensor:
            value = group.allreduce([ramp(rank)]).get_future().wait()
            return value[0] if isinstance(value, list) else value

        for t in each(members, run):
            assert torch.equal(t, total(len(members)))

    def test_allgather(self, members: Members) -> None:
        size = len(members)

        def run(rank: int, group: ProcessGroup) -> list[torch.Tensor]:
            out = [torch.zeros(6) for _ in range(size)]
            group.allgather([out], [ramp(rank)]).wait()
            return out

        for out in each(members, run):
            assert torch.equal(torch.stack(out), torch.stack([ramp(rank) for rank in range(size)]))

    def test_allgather_into_tensor_coalesced(self, members: Members) -> None:
        size = len(members)

        def run(rank: int, group: ProcessGroup) -> torch.Tensor:
            out = torch.zeros(6 * size)
            group.allgather_into_tensor_coalesced([out], [ramp(rank)]).wait()
            return out

        for out in each(members, run):
            assert torch.equal(out, torch.cat([ramp(rank) for rank in range(size)]))

    def test_alltoall_base(self, members: Members) -> None:
        size = len(members)

        def run(rank: int, group: ProcessGroup) -> torch.Tensor:
            out, given = torch.zeros(size), torch.arange(size, dtype=torch.float32) + 10 * rank
            group.alltoall_base(out, given, [], []).wait()
            return out

        for rank, out in enumerate(each(members, run)):
            assert out.tolist() == [10.0 * other + rank for other in range(size)]

    def test_barrier(self, members: Members) -> None:
        each(members, lambda rank, group: group.barrier().wait())

    def test_broadcast_from_each_root(self, members: Members) -> None:
        for root in range(len(members)):

            def run(rank: int, group: ProcessGroup, root: int = root) -> tuple[torch.Tensor, torch.Tensor]:
                one, listed = ramp(rank), ramp(rank)
                group.broadcast_one(one, root).wait()
                options = dist.BroadcastOptions()
                options.rootRank = root
                group.broadcast([listed], options).wait()
                return one, listed

            for one, listed in each(members, run):
                assert torch.equal(one, ramp(root))
                assert torch.equal(listed, ramp(root))

    def test_reduce_scatter(self, members: Members) -> None:
        size = len(members)

        def run(rank: int, group: ProcessGroup) -> torch.Tensor:
            out = torch.zeros(6)
            group.reduce_scatter([out], [[ramp(rank) + 100 * part for part in range(size)]]).wait()
            return out

        for rank, out in enumerate(each(members, run)):
            assert torch.equal(out, total(size) + 100 * rank * size)

    def test_reduce_scatter_tensor_coalesced(self, members: Members) -> None:
        size = len(members)

        def run(rank: int, group: ProcessGroup) -> torch.Tensor:
            out = torch.zeros(3)
            group.reduce_scatter_tensor_coalesced([out], [ramp(rank, 3 * size)]).wait()
            return out

        for rank, out in enumerate(each(members, run)):
            assert torch.equal(out, total(size, 3 * size)[3 * rank : 3 * rank + 3])

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

    def test_torch_distributed_takes_the_group(self, members: Members) -> None:
        def run(rank: int, group: ProcessGroup) -> torch.Tensor:
            t = ramp(rank)
            dist.all_reduce(t, op=ReduceOp.SUM, group=group)
            dist.barrier(group=group)
            return t

        for t in each(members, run):
            assert torch.equal(t, total(len(members)))

    # -- life --

    def test_size_rank_and_name(self, members: Members) -> None:
        assert [group.rank() for group in members] == list(range(len(members)))
        assert {group.size() for group in members} == {len(members)}
        assert members[0].getBackendName() == self.backend

    def test_abort_of_another_configuration_does_nothing(self, members: Members) -> None:
        members[0].abort(6)
        assert members[0].errored() is None
        each(members, lambda rank, group: group.barrier().wait())

    def test_after_an_abort_nothing_is_started_until_configure(
        self, members: Members, meeting: Callable[[], str]
    ) -> None:
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
