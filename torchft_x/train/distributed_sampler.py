"""A sampler that shares a dataset out among the ranks of all replica groups."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.utils import data
from torch.utils.data import Dataset

from torchft_x import env
from torchft_x.errors import ConfigError


class DistributedSampler(data.distributed.DistributedSampler[Any]):
    """Torch's `DistributedSampler` over (replica groups x ranks of a group).

    Failures lose samples, as they do in torchft. A group that is away skips its share of the epoch, and samples that a
    group drew but did not commit are not drawn again.

    Args:
        dataset: the dataset to sample from.
        replica_rank: number of this replica group, 0..num_replica_groups-1 (``REPLICA_GROUP_ID``).
        num_replica_groups: number of groups of the job, present or not (``NUM_REPLICA_GROUPS``).
        group_rank: rank in the group; by default torch.distributed's, else RANK, else 0.
        num_replicas: number of ranks of the group; by default torch.distributed's, else WORLD_SIZE, else 1.
        kwargs: torch's arguments shuffle, seed and drop_last.

    Raises:
        ConfigError: a rank is not below its number of ranks or groups.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        replica_rank: int,
        num_replica_groups: int,
        group_rank: int | None = None,
        num_replicas: int | None = None,
        **kwargs: object,
    ) -> None:
        ready = dist.is_available() and dist.is_initialized()
        if group_rank is None:
            group_rank = dist.get_rank() if ready else env.read_int(env.RANK, 0) or 0
        if num_replicas is None:
            num_replicas = dist.get_world_size() if ready else env.read_int(env.WORLD_SIZE, 1) or 1
        if not 0 <= group_rank < num_replicas:
            raise ConfigError(f"group_rank {group_rank} is not among the group's {num_replicas} ranks.")
        if not 0 <= replica_rank < num_replica_groups:
            raise ConfigError(
                f"replica_rank {replica_rank} is not among the {num_replica_groups} replica groups; "
                f"set {env.REPLICA_GROUP_ID} to a number below {env.NUM_REPLICA_GROUPS}."
            )
        self.global_rank: int = group_rank + num_replicas * replica_rank
        self.global_world_size: int = num_replicas * num_replica_groups
        super().__init__(dataset, rank=self.global_rank, num_replicas=self.global_world_size, **kwargs)
