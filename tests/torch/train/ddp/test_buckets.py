"""The layout of the flat buffers: equal in every version, and planned in linear time."""

from __future__ import annotations

import hashlib
import random
from unittest.mock import Mock

import pytest
import torch

from torchft_x.train.ddp import buckets
from torchft_x.train.ddp.buckets import layout_digest, plan_buckets


def some_parameters(rng: random.Random) -> list[torch.Tensor]:
    """Up to 60 parameters of up to three dtypes, some empty, some transposed; they take no memory."""
    dtypes = rng.sample([torch.float32, torch.bfloat16, torch.float64], rng.randint(1, 3))
    params = []
    for _ in range(rng.randint(1, 60)):
        shape = [rng.choice([0, 1, 2, 3, 17, 300]) for _ in range(rng.randint(0, 3))]
        p = torch.empty(shape, dtype=rng.choice(dtypes), device="meta")
        params.append(p.t() if p.dim() == 2 and rng.random() < 0.3 else p)
    return params


def test_the_layout_is_that_of_earlier_versions() -> None:
    """A group of another version, which joins late, must plan the very buckets of those that run."""
    rng = random.Random(29)
    digest = hashlib.sha256()
    for _ in range(200):
        params = some_parameters(rng)
        bucket_bytes = rng.choice([1, 100, 5_000, 2_000_000])
        plan = plan_buckets(params, first_bytes=rng.choice([1, 64, bucket_bytes]), bucket_bytes=bucket_bytes)
        digest.update(layout_digest(plan).encode())
    assert digest.hexdigest()[:16] == "8625cffbc3cc54f3"


def test_a_parameter_costs_as_much_in_a_large_model_as_in_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """12,000 small parameters cost 13 s at each start: each was added to the sum of all before it in its bucket."""
    nbytes = Mock(wraps=buckets._nbytes)
    monkeypatch.setattr(buckets, "_nbytes", nbytes)
    plan_buckets([torch.empty(4, device="meta")] * 1000)
    assert nbytes.call_count <= 3 * 1000
