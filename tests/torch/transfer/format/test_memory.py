from __future__ import annotations

import gc
import mmap
import resource

import pytest
import torch

from torchft_x.transfer.format.memory import allocate, populate, uncollected


def test_populated_memory_faults_no_more() -> None:
    memory = allocate(64 << 20)
    if not populate(memory):
        pytest.skip("Linux before 5.14 has no MADV_POPULATE_WRITE")
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    memory.fill_(1)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < (64 << 20) // mmap.PAGESIZE // 50


@pytest.mark.parametrize(("first", "end"), [(0, 1 << 20), (1, 4095), (5, 70_000), (3, 3)])
def test_populating_changes_no_byte(first: int, end: int) -> None:
    memory = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8)
    before = memory.clone()
    populate(memory[first:end])
    assert torch.equal(memory, before)


@uncollected
def collects(fails: bool = False) -> bool:
    if fails:
        raise ValueError("no")
    return gc.isenabled()


def test_no_collection_meanwhile_and_again_afterwards() -> None:
    assert gc.isenabled()
    assert not collects()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="no"):
        collects(fails=True)
    assert gc.isenabled()


def test_who_has_turned_collections_off_keeps_them_off() -> None:
    gc.disable()
    try:
        assert not collects()
        assert not gc.isenabled()
    finally:
        gc.enable()
