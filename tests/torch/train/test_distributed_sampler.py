"""The sampler's rank among (groups x ranks)."""

from __future__ import annotations

import pytest

from torchft_x.errors import ConfigError
from torchft_x.train.distributed_sampler import DistributedSampler


def test_every_sample_goes_to_exactly_one_rank() -> None:
    data = list(range(24))
    seen = []
    for group in range(3):
        for rank in range(2):
            sampler = DistributedSampler(
                data, replica_rank=group, num_replica_groups=3, group_rank=rank, num_replicas=2, shuffle=False
            )
            assert sampler.global_rank == group * 2 + rank
            assert sampler.global_world_size == 6
            seen += list(sampler)
    assert sorted(seen) == data


def test_ranks_come_from_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sampler = DistributedSampler(list(range(8)), 1, 2)
    assert (sampler.global_rank, sampler.global_world_size) == (5, 8)


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(ConfigError, match="REPLICA_GROUP_ID"):
        DistributedSampler([1], replica_rank=2, num_replica_groups=2, group_rank=0, num_replicas=1)
    with pytest.raises(ConfigError, match="group_rank 3"):
        DistributedSampler([1], replica_rank=0, num_replica_groups=1, group_rank=3, num_replicas=2)
