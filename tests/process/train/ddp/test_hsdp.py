"""Sharded models over groups of two ranks, as real processes, against one process that sees all batches."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.fsdp import CPUOffloadPolicy

from tests.torch.train.ddp.test_hsdp import (
    RANKS,
    check,
    check_wholes,
    groups,  # noqa: F401
    with_tensor_parallel,
)
from tests.torch.train.ranks import Groups, Place
from tests.torch.train.sharded import (
    Net,
    Trainer,
    reference,
    shard,
)


def offloading(net: Net) -> None:
    """A policy that changes nothing without a device, and does no harm."""
    shard(net, offload_policy=CPUOffloadPolicy(pin_memory=False))


def plain(place: Place) -> Any:
    return Trainer(place, **place.kwargs).run_to(4).end()


@pytest.mark.parametrize(
    "options",
    [{"bucket_cap_mb": 0.0001, "clip": 0.5}, {"cut": offloading}],
    ids=["many buckets, clipped", "offload policy"],
)
def test_two_groups_train_like_one_process(groups: Groups, options: dict[str, Any]) -> None:
    check(groups.run(2, plain, **options), reference(2, RANKS, 4, clip=options.get("clip", 0.0)))


def test_tensor_parallelism_and_fsdp_on_a_mesh_of_two_dimensions(groups: Groups) -> None:
    groups.ranks = 4
    check_wholes(groups.run(2, with_tensor_parallel, fsdp=True), reference(2, 2, 3, inner=8))
