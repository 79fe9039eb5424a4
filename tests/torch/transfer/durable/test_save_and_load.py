"""A state, saved by some ranks and loaded by others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.distributed.tensor import Replicate, Shard

from tests.torch.transfer.durable.saving import WAIT, as_rank, cut, load, save
from tests.torch.transfer.states import same, states, zeroed
from torchft_x.errors import DeadlineError, TransferError
from torchft_x.transfer.durable import names, reader, writer
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.shard import freeze
from torchft_x.transfer.durable.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "run"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=states)
def test_any_state_comes_back(store: Store, state: Any) -> None:
    name = save(store, state, 1)
    assert same(load(store), state)
    store.remove(str(name))  # reading the folder would take longer with each example


def test_blocks_and_reads_of_all_sizes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "READ_BYTES", 1 << 20)
    big = torch.randn(700, 1001)
    state = {
        "big": big, "turned": torch.randn(1001, 700).t(), "stepped": torch.randn(900, 700)[:, ::2], "tied": big,
        "small": [torch.full((i,), float(i)) for i in range(50)], "none": torch.empty(0, 3), "one": torch.tensor(7),
        "half": torch.randn(300, 1000).bfloat16(),
    }  # fmt: skip
    save(store, state, 1)
    assert same(load(store), state)
    assert same(load(store, zeroed(state)), state)
    bytes_there = sum(n or 0 for n in store.children(str(newest(store))).values())
    assert bytes_there < 700 * 1001 * 4 * 3.6  # what is tied is written once


def sharded(value: torch.Tensor, plain: torch.Tensor, mesh: Any, placements: Any) -> dict[str, Any]:
    return {"w": cut(value, mesh, placements), "b": plain, "n": 3}


MESHES = [
    ((1,), [Shard(0)]),
    ((3,), [Shard(0)]),
    ((4,), [Shard(1)]),
    ((2, 2), [Shard(0), Shard(1)]),
    ((2, 3), [Shard(0), Shard(0)]),
    ((2, 2), [Replicate(), Shard(0)]),
    ((2,), [Replicate()]),
    ((8,), [Shard(0)]),  # some hold nothing
]


@pytest.mark.parametrize("source", MESHES, ids=str)
@pytest.mark.parametrize("reader", [*MESHES, None], ids=str)
def test_other_ranks_read_it(store: Store, source: Any, reader: Any) -> None:
    value, plain = torch.randn(7, 9), torch.randn(5)
    (shape, placements), ranks = source, torch.Size(source[0]).numel()

    name = names.name(4, "0-a")
    for rank in reversed(range(ranks)):
        with as_rank(rank, shape) as mesh:
            shard = freeze(sharded(value, plain, mesh, placements), step=4, rank=rank, ranks=ranks)
        writer.write_shard(store, name, shard)
    writer.complete(store, name, shard, job="j", timeout=WAIT)
    data = sum(n or 0 for file, n in store.children(str(name)).items() if file.endswith(".data"))
    assert data <= (63 + 5) * 4 + 2 * 64 * ranks  # each value is written once, by whatever rank
    if reader is None:
        whole = load(store)
        assert same(whole, {"w": value, "b": plain, "n": 3})
        return
    shape, placements = reader
    for rank in range(torch.Size(shape).numel()):
        with as_rank(rank, shape) as mesh:
            into = sharded(torch.zeros(7, 9), torch.zeros(5), mesh, placements)
            result = load(store, into)
            assert result["w"] is into["w"]
            assert torch.equal(result["w"].to_local(), cut(value, mesh, placements).to_local())
            assert torch.equal(into["b"], plain)


def test_only_the_rows_that_are_needed_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, {"w": torch.randn(16, 1 << 18)}, 1)  # 16 MiB
    read: list[int] = []
    original = Store.read

    def count(self: Store, name: str, start: int, end: int) -> bytes:
        data = original(self, name, start, end)
        read.append(len(data) * name.endswith(".data"))
        return data

    monkeypatch.setattr(Store, "read", count)
    with as_rank(3, (8,)) as mesh:
        load(store, {"w": cut(torch.zeros(16, 1 << 18), mesh, [Shard(0)])})
    assert sum(read) == 2 << 20


def test_shapes_cost_no_memory(store: Store) -> None:
    save(store, {"a": torch.zeros(4, 5), "b": [1, torch.zeros(2, dtype=torch.int8)]}, 1)
    name = newest(store)
    assert name is not None
    shapes = Saved(store, name).shapes()
    assert shapes["a"].device.type == "meta"
    assert shapes["a"].shape == (4, 5)
    assert shapes["b"][1].dtype == torch.int8


@pytest.mark.parametrize("into", [torch.zeros(4, 6), torch.zeros(4, 5, dtype=torch.float64), torch.zeros(20)])
def test_another_models_checkpoint_changes_nothing(store: Store, into: torch.Tensor) -> None:
    save(store, {"a": torch.ones(2), "w": torch.ones(4, 5)}, 1)
    first = torch.zeros(2)
    with pytest.raises(
        TransferError, match=r"step-00000001\.0-a: w is \(4, 5\) torch.float32 there and .* here; it wa"
    ):
        load(store, {"a": first, "w": into})
    assert first.sum() == 0
    assert into.sum() == 0


def test_memory_is_used_again() -> None:
    first = freeze({"w": torch.ones(1000)}, step=1)
    again = freeze({"w": torch.zeros(900)}, step=2, memory=first.memory)
    assert again.memory is first.memory
    assert freeze({"w": torch.zeros(2000)}, step=2, memory=first.memory).memory is not first.memory


def test_it_is_complete_when_all_ranks_have_written(store: Store) -> None:
    name = names.name(1, "a")
    shards = [freeze({"w": torch.ones(10)}, step=1, rank=rank, ranks=2) for rank in range(2)]
    writer.write_shard(store, name, shards[0])
    assert newest(store) is None
    with pytest.raises(DeadlineError, match="rank 1 of 2 has not written its shard"):
        writer.complete(store, name, shards[0], job="j", timeout=0.0)
    late = threading.Timer(0.2, writer.write_shard, (store, name, shards[1]))
    late.start()
    writer.complete(store, name, shards[0], job="j", timeout=WAIT)
    assert newest(store) == name
    late.join()


def test_the_wait_for_the_others_can_be_ended(store: Store) -> None:
    name = names.name(1, "a")
    shard = freeze({"w": torch.ones(10)}, step=1, rank=0, ranks=2)
    writer.write_shard(store, name, shard)
    stop = threading.Event()
    stop.set()
    with pytest.raises(TransferError, match="is given up"):
        writer.complete(store, name, shard, job="j", timeout=WAIT, stop=stop)


@pytest.mark.parametrize(
    ("theirs", "step"), [({"w": torch.ones(11)}, 1), ({"v": torch.ones(10)}, 1), ({"w": torch.ones(10)}, 2)]
)
def test_shards_of_another_state_do_not_make_one(store: Store, theirs: Any, step: int) -> None:
    name = names.name(1, "a")
    shard = freeze({"w": torch.ones(10)}, step=1, rank=0, ranks=2)
    writer.write_shard(store, name, shard)
    writer.write_shard(store, name, freeze(theirs, step=step, rank=1, ranks=2))
    with pytest.raises(TransferError, match="rank 1 is of another state"):
        writer.complete(store, name, shard, job="j", timeout=WAIT)
    assert newest(store) is None


def test_a_further_step_of_somebody_else_is_not_overtaken(store: Store) -> None:
    save(store, {"w": torch.ones(10)}, 7, who="other", job="other")
    with pytest.raises(TransferError, match="it holds step 7 by now, and this is step 5; another job"):
        save(store, {"w": torch.ones(10)}, 5)
    save(store, {"w": torch.ones(10)}, 5, job="other")  # its own new lineage may be behind the lost one


def test_older_ones_and_garbage_go(store: Store) -> None:
    for step in (1, 2, 3):
        save(store, {"w": torch.ones(10)}, step)
    shard = freeze({"w": torch.ones(10)}, step=3, rank=0, ranks=2)
    writer.write_shard(store, names.name(3, "dead"), shard)
    store.write("notes.txt", [b"mine"])
    last = save(store, {"w": torch.ones(10)}, 4)
    writer.write_shard(store, names.name(5, "alive"), shard)
    writer.sweep(store, last, 2)
    assert sorted(store.children()) == ["notes.txt", "step-00000003.0-a", "step-00000004.0-a", "step-00000005.alive"]
