"""What passes between a group and its child: arguments of collectives, and shared memory."""

from __future__ import annotations

import os
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler

import torch
import torch.distributed as dist

from torchft_x.comm.subprocess import collective_args
from torchft_x.comm.subprocess.shared_memory import ALIGNMENT, Place, SharedMemory, map_segment


def carried(*args: object) -> list[object]:
    return ForkingPickler.loads(ForkingPickler.dumps(collective_args.replace(args, torch.Tensor, lambda t: None)))


def test_options_come_back() -> None:
    broadcast = dist.BroadcastOptions()
    broadcast.rootRank, broadcast.timeout = 2, timedelta(seconds=1.5)
    got = carried([torch.ones(1)], broadcast)[1]
    assert (got.rootRank, got.timeout) == (2, timedelta(seconds=1.5))  # type: ignore[attr-defined]
    reduce = dist.AllreduceOptions()
    reduce.reduceOp = dist.ReduceOp.MAX
    assert carried([torch.ones(1)], reduce)[1].reduceOp == dist.ReduceOp.MAX  # type: ignore[attr-defined]
    assert carried([torch.ones(1)], dist.ReduceOp.AVG)[1] == dist.ReduceOp.AVG


def test_tensors_in_a_segment_are_aligned_and_apart() -> None:
    tensors = [
        torch.ones(3, dtype=torch.int8),
        torch.tensor(2.5),
        torch.ones(0),
        torch.ones(5, 7, dtype=torch.complex128),
    ]
    places: list[Place] = []
    for t in tensors:
        places.append(Place(places[-1].end if places else 0, t))
    assert all(place.start % ALIGNMENT == 0 for place in places)
    memory = SharedMemory()
    memory.take(1)
    segment = memory.take(places[-1].end)
    there = map_segment(memory.fd, segment.start, segment.size)
    for place, t in zip(places, tensors, strict=True):
        place.view(segment.memory).copy_(t)
    for place, t in zip(places, tensors, strict=True):
        assert torch.equal(place.view(there), t)


def test_segments_are_used_again() -> None:
    memory = SharedMemory()
    first, large = memory.take((4 << 20) + 1), memory.take(64 << 20)
    memory.give_back(first)
    memory.give_back(large)
    assert memory.take(5 << 20) is first
    assert memory.take(5 << 20) is large
    size = os.fstat(memory.fd).st_size
    memory.give_back(first)
    memory.give_back(memory.take(1))
    assert os.fstat(memory.fd).st_size == size
