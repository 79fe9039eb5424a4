from __future__ import annotations

import mmap
import resource

import pytest
import torch

from tests.torch.train.fakes import background
from tests.util import scaled, wait_for
from torchft_x.core.types import State
from torchft_x.errors import ConfigError, LeafError
from torchft_x.transfer import snapshot as module
from torchft_x.transfer.snapshot import Refusal, Snapshot, SnapshotStore


@pytest.fixture
def store() -> SnapshotStore:
    return SnapshotStore()


def freeze(store: SnapshotStore, step: int, owed: int = 0, size: int = 1000) -> Snapshot:
    return store.freeze(State(step), {"w": torch.full((size,), float(step))}, owed)


def held(store: SnapshotStore, step: int) -> Snapshot:
    answer = store.ask(State(step), 0)
    assert isinstance(answer, Snapshot)
    return answer


def refused(store: SnapshotStore, step: int) -> Refusal:
    answer = store.ask(State(step), 0)
    assert isinstance(answer, Refusal)
    return answer


def first_value(snapshot: Snapshot) -> float:
    return float(snapshot.buffer[:4].view(torch.float32)[0])


def test_one_buffer_serves_for_ever_without_readers(store: SnapshotStore) -> None:
    address = freeze(store, 1).buffer.data_ptr()
    for step in range(2, 6):
        store.release(held(store, step - 1), cut=False)
        assert freeze(store, step).buffer.data_ptr() == address


def faults(store: SnapshotStore, step: int, state: dict[str, torch.Tensor]) -> int:
    """Pages that one snapshot takes from the system."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    store.freeze(State(step), state, 1)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.parametrize("break_off", [False, True])
def test_later_snapshots_take_no_pages(store: SnapshotStore, break_off: bool) -> None:
    state = {f"w{i}": torch.full((1 << 18,), float(i)) for i in range(96)}
    pages = (96 << 20) // mmap.PAGESIZE
    buffers = set()
    taken = []
    for step in range(1, 6):
        taken.append(faults(store, step, state))
        reading = held(store, step)
        buffers.add(reading.buffer.data_ptr())
        store.release(reading, cut=break_off, began=break_off)
        store.disallow()
    assert len(buffers) == (2 if break_off else 1)  # the one before stays for a reader that may come back
    assert max(taken[len(buffers) :]) < pages // 50  # in huge pages the first take as few


def test_a_prepared_buffer_is_used(store: SnapshotStore) -> None:
    freeze(store, 1, size=10)  # at step 0 there is no optimizer state yet
    store.prepare({"w": torch.ones(1000)})
    wait_for(lambda: bool(store._spare), what="the memory")
    address = store._spare[0].data.data_ptr()
    for step in range(2, 5):
        assert freeze(store, step).buffer.data_ptr() == address


def test_memory_is_prepared_once(store: SnapshotStore) -> None:
    freeze(store, 1)
    store._make(4000, pinned=False)
    assert not store._spare  # what the snapshot has will do
    store._make(10_000, pinned=False)
    (spare,) = store._spare
    store._make(10_000, pinned=False)
    assert store._spare[0] is spare


def test_no_memory_is_no_error_yet(caplog: pytest.LogCaptureFixture) -> None:
    SnapshotStore()._make(1 << 60, pinned=False)
    assert f"no memory for a copy of the state ({1 << 60} bytes)" in caplog.text


def test_a_buffer_in_use_is_not_overwritten(store: SnapshotStore) -> None:
    freeze(store, 1)
    first = held(store, 1)
    freeze(store, 2)
    second = held(store, 2)
    third = freeze(store, 3)
    assert [first_value(s) for s in (first, second, third)] == [1, 2, 3]
    store.release(first, cut=False)
    assert first.revoked
    assert store.resume(first.id) is None
    assert [first_value(s) for s in (second, third)] == [2, 3]


def test_readers_without_end_do_not_take_memory_without_end(store: SnapshotStore) -> None:
    snapshots = []
    for step in range(1, 10):
        freeze(store, step)
        snapshots.append(held(store, step))
    assert [s.revoked for s in snapshots].count(False) == module.MAX_ALIVE
    assert not snapshots[-1].revoked


def test_a_state_that_cannot_be_sent_leaves_the_old_snapshot(store: SnapshotStore) -> None:
    freeze(store, 1)
    with pytest.raises(LeafError):
        store.freeze(State(2), {"w": object()}, 0)
    held(store, 1)


def test_refusals_say_why(store: SnapshotStore) -> None:
    assert refused(store, 1) == Refusal("it has no state to offer yet", False)
    freeze(store, 5)
    assert refused(store, 6).final is False
    assert "step 5" in refused(store, 6).reason
    assert refused(store, 4).final is True
    assert store.ask(State(5, 9), 0) == Refusal("it offers step 5 (quorum 0), not step 5 (quorum 9)", False)


def test_disallow_keeps_new_readers_out_until_the_next_allow(store: SnapshotStore) -> None:
    freeze(store, 1)
    store.disallow()
    assert "may not be read" in refused(store, 1).reason
    store.allow(1)
    held(store, 1)
    with pytest.raises(ConfigError, match="step 1"):
        store.allow(2)


def test_a_promised_destination_may_still_begin_after_disallow_but_only_once(store: SnapshotStore) -> None:
    freeze(store, 1, owed=1)
    store.disallow()
    reading = held(store, 1)
    assert refused(store, 1).final is False
    store.release(reading, cut=True, began=True)  # it broke, so the promise holds again
    held(store, 1)
    refused(store, 1)


def test_a_reader_that_was_cut_off_can_resume_after_the_next_snapshot(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(store, 1)
    reading = held(store, 1)
    store.release(reading, cut=True)
    freeze(store, 2)
    resumed = store.resume(reading.id)
    assert resumed is reading
    assert first_value(resumed) == 1
    freeze(store, 3)  # a reader in progress keeps its buffer
    assert not reading.revoked
    monkeypatch.setattr(module, "CUT_GRACE", 0.0)
    store.release(reading, cut=True)
    assert store.resume(reading.id) is None


def test_close_waits_for_readers_and_refuses_new_ones(store: SnapshotStore) -> None:
    freeze(store, 1)
    reading = held(store, 1)
    closing = background(lambda: store.close(scaled(10)))
    wait_for(lambda: refused_for_ever(store))
    assert not closing.done()
    assert not reading.revoked
    assert store.resume(reading.id) is reading  # its second stream
    store.release(reading, cut=False)
    store.release(reading, cut=False)
    closing.result(scaled(10))
    assert reading.revoked


def refused_for_ever(store: SnapshotStore) -> bool:
    answer = store.ask(State(1), 0)
    if isinstance(answer, Refusal):
        return answer.final
    store.release(answer, cut=False)
    return False


def test_digests_are_of_the_frozen_bytes(store: SnapshotStore) -> None:
    frozen = freeze(store, 1, size=1 << 20)
    assert len(frozen.blocks) == 4
    assert frozen.digest(2) == frozen.digest(0) == module.digest(torch.ones(1 << 18).view(torch.uint8))
