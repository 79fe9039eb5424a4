"""States of simulated ranks, which one process saves one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.util import scaled
from torchft_x.transfer.durable import names, writer
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.names import Name
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.shard import freeze
from torchft_x.transfer.durable.store import Store

WAIT = scaled(10)


def save(store: Store, state: Any, step: int, *, who: str = "0-a", ranks: int = 1, job: str = "job") -> Name:
    """Save the shards of all ranks, rank 0's last. Return the name of the checkpoint."""
    name = names.name(step, who)
    for rank in reversed(range(ranks)):
        shard = freeze(state, step=step, rank=rank, ranks=ranks)
        writer.write_shard(store, name, shard)
        if rank == 0:
            writer.complete(store, name, shard, job=job, timeout=WAIT)
    return name


def load(store: Store, into: Any = None) -> Any:
    """Return the state of the newest checkpoint."""
    name = newest(store)
    assert name is not None
    return Saved(store, name).load(into)


@contextlib.contextmanager
def as_rank(rank: int, shape: tuple[int, ...]) -> Iterator[DeviceMesh]:
    """Act as one rank of a mesh without other processes: tensors are sharded as on that rank, and nothing is sent."""
    ranks = 1
    for n in shape:
        ranks *= n
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        # Named after the rank: torch caches results of operations by mesh, whose identity does not include its rank.
        yield init_device_mesh("cpu", shape, mesh_dim_names=tuple(f"{i}_of_rank_{rank}" for i in range(len(shape))))
    finally:
        dist.destroy_process_group()


def cut(value: torch.Tensor, mesh: DeviceMesh, placements: Any) -> Any:
    return distribute_tensor(value, mesh, placements, src_data_rank=None)
