"""Checks of process groups on a card: NCCL with one member, NCCL in a child, gloo with several members on a device."""

from __future__ import annotations

import time
from functools import partial

import torch
import torch.distributed as dist

from tests.extended.gpu.kit import Figures, Kit, need, need_equal, need_failure
from tests.torch.comm.members import GlooFrame, configure, each
from torchft_x.comm import ProcessGroupGloo, ProcessGroupNCCL
from torchft_x.comm.accelerator.group import AcceleratorGroup
from torchft_x.comm.base import ProcessGroup, RankInfo
from torchft_x.comm.subprocess.child_handle import ChildHandle
from torchft_x.comm.subprocess.child_main import Child
from torchft_x.errors import CollectiveError

LIMIT = 60.0  # seconds until a collective times out


def library_group(kit: Kit) -> AcceleratorGroup:
    return GlooFrame(LIMIT) if kit.on_cpu else ProcessGroupNCCL(LIMIT)


def connect_alone(group: AcceleratorGroup, quorum_id: int, device: torch.device) -> None:
    """Connect a communicator of one member.

    `configure` connects none for a single member, and one card allows no second, so that the work of the connecting
    thread is done here.
    """
    old = group._present
    group.configure("", "gpu_check", 0, 1, quorum_id)
    need(old is None or old.gone.wait(30), "the abort of the communicator before has not ended after 30 s")
    members = group._present
    store = dist.HashStore()
    names = {"group_name": f"torchft_{quorum_id}_rank_0", "global_ranks": [0]}
    backend = group._backend(store, members.info, device, names)
    whole = dist.ProcessGroup(store, 0, 1)
    kind = getattr(dist.ProcessGroup.BackendType, group._backend_type)
    whole._set_default_backend(kind)
    whole._register_backend(torch.device(group._device), kind, backend)
    members.group, members.backend = whole, backend


def reduce_alone(kit: Kit, group: ProcessGroup, seed: int) -> None:
    want = kit.tensor(1 << 16, seed=seed)
    got = want.clone()
    need(group.allreduce([got]).wait(), "allreduce of one member did not end well")
    need(group.errored() is None, f"the group has failed: {group.errored()}")
    need_equal(got, want, "allreduce of one member")


def nccl_of_one(kit: Kit) -> Figures:
    """Check our code around a real communicator: options, collectives, streams, errors."""
    group = library_group(kit)
    began = time.perf_counter()
    connect_alone(group, 1, kit.device)
    reduce_alone(kit, group, 1)
    kit.figures["connect and first allreduce, s"] = round(time.perf_counter() - began, 3)
    t = kit.tensor(1 << 16)
    need(group.broadcast([t]).wait(), "broadcast")
    out = [torch.empty_like(t)]
    need(group.allgather([out], [t]).wait(), "allgather")
    need_equal(out[0], t, "allgather of one member")
    need(group.barrier().wait(), "barrier")
    group.shutdown()
    return kit.figures


def nccl_abort_and_rebuild(kit: Kit) -> Figures:
    """Check an abort, also while the stream is busy, and new communicators after it."""
    group = library_group(kit)
    aborts, builds = [], []
    for quorum_id in range(1, 5):
        began = time.perf_counter()
        connect_alone(group, quorum_id, kit.device)
        reduce_alone(kit, group, quorum_id)
        builds.append(round(time.perf_counter() - began, 3))
        t = kit.tensor(1 << 20)
        if not kit.on_cpu:
            torch.cuda._sleep(int(1e8))  # keep the stream busy for some 50 ms
        work = group.allreduce([t])
        began = time.perf_counter()
        group.abort(quorum_id)
        need(isinstance(group.errored(), CollectiveError), "after an abort errored() tells nothing")
        need_failure(work, "a collective of an aborted group ended well")
        kit.wait()
        aborts.append(round(time.perf_counter() - began, 3))
    kit.figures["abort, s"] = aborts
    kit.figures["connect and allreduce, s"] = builds
    group.shutdown()
    return kit.figures


def nccl_in_a_child(kit: Kit) -> Figures:
    """Check that tensors reach the child by IPC without a copy, after the pending work of their stream."""
    began = time.perf_counter()
    index = 0 if kit.on_cpu else torch.cuda.current_device()
    make = partial(ProcessGroupGloo, LIMIT, host="127.0.0.1") if kit.on_cpu else partial(ProcessGroupNCCL, LIMIT)
    child = ChildHandle(Child(make, ("", "a", 0, 1, 1), kit.device.type, index, None), RankInfo(0, 1, 1), LIMIT)
    try:
        need(child.configured.wait(LIMIT), "the child was not configured in time")
        need(child.error is None, f"the child failed: {child.error}")
        kit.figures["start and configure, s"] = round(time.perf_counter() - began, 3)
        given, out = (torch.zeros(1 << 20, device=kit.device) for _ in range(2))
        if not kit.on_cpu:
            torch.cuda._sleep(int(1e8))
        given += 3
        need(child.issue("allgather", ([[out]], [given])).wait(), "allgather in the child")
        need_equal(out, torch.full((1 << 20,), 3.0), "what the child wrote")
    finally:
        child.end(CollectiveError("the check is over"))
    return kit.figures


def gloo_on_the_device(kit: Kit) -> Figures:
    """Check several members on one card, through host memory: every collective in use, and a missing member."""
    size = 3
    with kit.gloo_groups(size, LIMIT) as groups:
        mine = [kit.tensor(5000, seed=rank) for rank in range(size)]
        total = each(groups, lambda rank, group: _allreduced(group, mine[rank]))
        for t in total:
            need_equal(t, total[0], "allreduce: the members differ")
        reference = (mine[0].cpu() + mine[1].cpu()) + mine[2].cpu()
        need(torch.allclose(total[0].cpu(), reference, atol=1e-5), "allreduce: not the sum")
        need(total[0].device == kit.device, f"the result is on {total[0].device}")
        gathered = each(groups, lambda rank, group: _gathered(group, mine[rank], size))
        for parts in gathered:
            for rank, part in enumerate(parts):
                need_equal(part, mine[rank], f"allgather, part {rank}")
        for t in each(groups, lambda rank, group: _broadcast(group, mine[rank].clone())):
            need_equal(t, mine[0], "broadcast")
        exchanged = each(groups, lambda rank, group: _exchanged(group, mine[rank], size))
        need_equal(exchanged[1][:1000], mine[0][1000:2000], "alltoall")
        large = [kit.tensor(1 << 22, seed=rank) for rank in range(size)]
        took = kit.seconds(lambda: each(groups, lambda rank, group: _allreduced(group, large[rank])), 3)
        kit.figures["allreduce of 16 MiB, 3 members, s"] = round(took, 4)
        _leave_one_waiting(kit, groups)
    return kit.figures


def _allreduced(group: ProcessGroup, t: torch.Tensor) -> torch.Tensor:
    out = t.clone()
    group.allreduce([out]).wait()
    return out


def _gathered(group: ProcessGroup, t: torch.Tensor, size: int) -> list[torch.Tensor]:
    out = [torch.empty_like(t) for _ in range(size)]
    group.allgather([out], [t]).wait()
    return out


def _broadcast(group: ProcessGroup, t: torch.Tensor) -> torch.Tensor:
    group.broadcast([t]).wait()
    return t


def _exchanged(group: ProcessGroup, t: torch.Tensor, size: int) -> torch.Tensor:
    given = t[: 1000 * size].clone()
    out = torch.empty_like(given)
    group.alltoall_base(out, given, [1000] * size, [1000] * size, dist.AllToAllOptions()).wait()
    return out


def _leave_one_waiting(kit: Kit, groups: list[ProcessGroup]) -> None:
    """Check that an abort releases a member whose partners don't come, and that all can connect again."""
    work = groups[0].allreduce([kit.tensor(1 << 16)])
    began = time.perf_counter()
    groups[0].abort(1)
    need_failure(work, "an allreduce that nobody joined ended well")
    kit.figures["released after an abort, s"] = round(time.perf_counter() - began, 4)
    configure(groups, kit.meeting(), 2)
    found = each(groups, lambda rank, group: _allreduced(group, kit.tensor(100, seed=rank)))
    need_equal(found[0], found[1], "after a rebuild")
