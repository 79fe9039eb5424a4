"""What passes between a group and its child: arguments, shared memory, handles, messages with descriptors."""

from __future__ import annotations

import json
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.torch.train.fakes import background
from tests.util import scaled
from torchft_x.comm.accelerator import ipc
from torchft_x.comm.subprocess import args_codec
from torchft_x.comm.subprocess.pipe import Pipe
from torchft_x.comm.subprocess.shared_memory import ALIGNMENT, SharedSegments, map_segment, place, view
from torchft_x.errors import CollectiveError


def carried(op: str, *args: object) -> list[object]:
    tensors = [t for arg in args for t in args_codec.tensors_in(arg)]
    return args_codec.unpack(json.loads(json.dumps(args_codec.pack(op, args))), tensors)


def test_options_come_back() -> None:
    broadcast = dist.BroadcastOptions()
    broadcast.rootRank, broadcast.timeout = 2, timedelta(seconds=1.5)
    got = carried("broadcast", [torch.ones(1)], broadcast)[1]
    assert (got.rootRank, got.timeout) == (2, timedelta(seconds=1.5))  # type: ignore[attr-defined]
    reduce = dist.AllreduceOptions()
    reduce.reduceOp = dist.ReduceOp.MAX
    assert carried("allreduce", [torch.ones(1)], reduce)[1].reduceOp == dist.ReduceOp.MAX  # type: ignore[attr-defined]
    assert carried("allreduce", [torch.ones(1)], dist.ReduceOp.AVG)[1] == dist.ReduceOp.AVG


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(CollectiveError, match="argument of type object"):
        args_codec.pack("allreduce", ([torch.ones(1)], object()))


def test_tensors_in_a_segment_are_aligned_and_apart() -> None:
    tensors = [
        torch.ones(3, dtype=torch.int8),
        torch.tensor(2.5),
        torch.ones(0),
        torch.ones(5, 7, dtype=torch.complex128),
    ]
    starts, nbytes = place(tensors)
    assert all(start % ALIGNMENT == 0 for start in starts)
    segment = SharedSegments().take(nbytes)
    there = map_segment(segment.fd, segment.size)
    for start, t in zip(starts, tensors, strict=True):
        view(segment.memory, start, t.dtype, t.shape).copy_(t)
    for start, t in zip(starts, tensors, strict=True):
        assert torch.equal(view(there, start, t.dtype, t.shape), t)


def test_segments_are_used_again_and_few_are_kept() -> None:
    arena = SharedSegments()
    first = arena.take(5 << 20)
    number = first.number
    arena.give_back(first)
    assert arena.take(6 << 20).number == number, "the next power of two"
    many = [arena.take(1) for _ in range(30)]
    fds = len(os.listdir("/proc/self/fd"))
    while many:
        arena.give_back(many.pop())
    assert len(os.listdir("/proc/self/fd")) < fds - 15


def test_handles_of_cuda_tensors_come_back() -> None:
    """Only their form: what they mean takes a GPU (test_gpu.py)."""
    values = [
        torch.Tensor, torch.Size([2, 3]), (3, 1), 4, torch.storage.TypedStorage, torch.bfloat16, 0, b"\x00handle", 64, 512,
        False, b"counter", 8, b"event", True,
    ]  # fmt: skip
    got = [ipc._from_json(json.loads(json.dumps(ipc._to_json(value)))) for value in values]
    assert got[:2] == values[:2]
    assert tuple(got[2]) == (3, 1)
    assert got[3:] == values[3:]


def test_messages_with_descriptors() -> None:
    near, far = Pipe.pair()
    large = {"text": "x" * 3_000_000}
    sent = background(lambda: [near.send({"n": 1}, [1]), near.send(large)])
    message, fds = far.recv()
    assert message == {"n": 1}
    assert os.fstat(fds[0]).st_ino == os.fstat(1).st_ino
    os.close(fds[0])
    assert far.recv() == (large, [])
    sent.result(scaled(5))
    near.shut()
    with pytest.raises(EOFError):
        far.recv()
    with pytest.raises(OSError):
        near.send({})
    near.close()
    far.close()


def test_nobody_reads() -> None:
    near, _far = Pipe.pair()
    near.limit_sends(0.1)
    with pytest.raises(OSError):
        near.send({"text": "x" * 10_000_000})
