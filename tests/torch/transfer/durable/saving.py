"""States of pretended ranks, and saving them one rank after the other in one process."""

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
    """All ranks' shards, rank 0 last."""
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
    """Be one rank of a mesh that has no others: what is sharded is cut as there, and nothing is sent."""
    ranks = 1
    for n in shape:
        ranks *= n
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        # Named after the rank, as torch keeps results of operations by mesh, and its rank is no part of a mesh's identity.
        yield init_device_mesh("cpu", shape, mesh_dim_names=tuple(f"{i}_of_rank_{rank}" for i in range(len(shape))))
    finally:
        dist.destroy_process_group()


def cut(value: torch.Tensor, mesh: DeviceMesh, placements: Any) -> Any:
    return distribute_tensor(value, mesh, placements, src_data_rank=None)
