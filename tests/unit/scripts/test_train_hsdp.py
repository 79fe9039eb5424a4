"""scripts/train_hsdp.py: its parts that can be tried without a job."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from torchft_x.errors import ConfigError


@pytest.fixture(scope="module")
def hsdp() -> ModuleType:
    return importlib.import_module("train_hsdp")


def test_the_peers_spelling_of_the_degrees_and_the_usual_one(hsdp: ModuleType) -> None:
    args = hsdp.parse_args(["--data_parallel_replica_degree=2", "--data-parallel-shard-degree=4", "--steps=3"])
    assert (args.data_parallel_replica_degree, args.data_parallel_shard_degree, args.steps) == (2, 4, 3)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--data_parallel_replica_degree=3"], r"is 3, but the job has 2 replica groups; start it with --replicas 3"),
        (["--data_parallel_shard_degree=3"], r"4 ranks, which can't be divided by --data_parallel_shard_degree 3"),
        (["--tensor_parallel_degree=3"], r"times --tensor_parallel_degree 3; .* --workers_per_replica"),
        (["--data_parallel_shard_degree=0"], r"--data_parallel_shard_degree 0"),
    ],
)
def test_degrees_that_cannot_be_get_a_sentence(
    hsdp: ModuleType, monkeypatch: pytest.MonkeyPatch, argv: list[str], sentence: str
) -> None:
    monkeypatch.setenv("NUM_REPLICA_GROUPS", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=sentence):
        hsdp.make_mesh(hsdp.parse_args(argv))
