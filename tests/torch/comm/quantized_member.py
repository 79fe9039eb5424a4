"""A member in a process of its own, which reduces the tensors of `given` in every format, in groups of several sizes.

A group consists of the first `size` members. The process sends the digests of its results.
"""

from __future__ import annotations

import hashlib
from multiprocessing.connection import Connection

import torch
from torch.distributed import ReduceOp

from tests.util import scaled
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.quantized import collectives

FORMATS = ("int8", "int4")


def given(rank: int) -> list[torch.Tensor]:
    """Return tensors of many shapes, strides and dtypes, with values that differ from rank to rank."""
    g = torch.Generator().manual_seed(100 + rank)
    return [
        torch.randn(300, 70, generator=g),
        torch.randn(5, generator=g).bfloat16(),
        torch.randn(0),
        torch.randn(7, 90, generator=g).half().t(),
        torch.randn((), generator=g).double(),
        torch.zeros(200),
        torch.randn(3, 4, 6, 5, generator=g).to(memory_format=torch.channels_last),
        torch.randn(33, 2, generator=g)[:, 1],
    ]


def digest(tensors: list[torch.Tensor]) -> str:
    h = hashlib.sha256()
    for t in tensors:
        h.update(repr((t.dtype, tuple(t.shape), t.stride())).encode())
        h.update(bytes(t.contiguous().view(-1).view(torch.uint8).tolist()))
    return h.hexdigest()


def main(pipe: Connection, port: int, rank: int, sizes: tuple[int, ...]) -> None:
    torch.set_num_threads(1)
    collectives.CHUNK = 1 << 12  # elements; gives several chunks, the last one short
    found: dict[tuple[int, str], str] = {}
    group = ProcessGroupGloo(scaled(30.0), host="127.0.0.1")
    for size in sizes:
        if rank >= size:
            continue
        group.configure(f"127.0.0.1:{port}/quantized/{size}", f"replica{rank}", rank, size, size)
        for fmt in FORMATS:
            tensors = given(rank)
            collectives.allreduce_quantized(tensors, ReduceOp.AVG, group, quantize=fmt).wait()
            found[size, fmt] = digest(tensors)
    group.shutdown()
    pipe.send(found)
