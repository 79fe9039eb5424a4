"""Copies of a state in memory that outlives its process: whole, or none."""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.torch.transfer.states import same
from torchft_x.core import memory_slot
from torchft_x.core.types import State
from torchft_x.errors import LeafError, TransferError
from torchft_x.launch.process.checkpoint_memory import CheckpointMemory
from torchft_x.transfer import memory_slots as module
from torchft_x.transfer.memory_slots import MemorySlot, TooLarge

LIMIT = 64 << 20


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("slot", os.MFD_CLOEXEC)
    yield fd
    os.close(fd)


def slot_of(fd: int, limit: int = LIMIT) -> MemorySlot:
    return MemorySlot(os.dup(fd), limit)


def state_dict(value: float, size: int = 300_000) -> dict[str, Any]:
    big = torch.full((size,), value)
    return {"w": big, "tied": big, "small": torch.arange(10) + value, "none": torch.empty(0), "step": int(value)}


def fill(slot: MemorySlot, value: float, size: int = 300_000) -> None:
    state = state_dict(value, size)
    if slot.room_for(state):
        slot.grow(slot.room_for(state))
    assert slot.write(State(int(value), 7), state)
    slot.seal()


@pytest.fixture
def filled(fd: int) -> MemorySlot:
    slot = slot_of(fd)
    fill(slot, 3.0)
    return slot


def test_an_empty_slot_holds_nothing(fd: int) -> None:
    slot = slot_of(fd)
    assert slot.state is None
    assert not slot.write(State(1, 7), state_dict(1.0))
    with pytest.raises(TransferError, match="holds no complete state"):
        slot.read()


def test_what_was_sealed_the_next_attempt_reads(fd: int) -> None:
    first = slot_of(fd)
    fill(first, 3.0)
    first.close()
    second = slot_of(fd)
    assert second.state == State(3, 7)
    assert same(second.read(), state_dict(3.0))
    got = second.read()
    assert got["w"].data_ptr() == got["tied"].data_ptr()


def test_it_is_read_into_the_tensors_that_are_there(filled: MemorySlot) -> None:
    into = state_dict(0.0)
    got = filled.read(into)
    assert got["w"] is into["w"]
    assert same(into | {"step": 3}, state_dict(3.0))


def test_without_a_seal_it_holds_nothing(filled: MemorySlot) -> None:
    assert filled.write(State(4, 7), state_dict(4.0))
    assert filled.state is None
    filled.seal()
    assert filled.state == State(4, 7)
    filled.erase()
    assert filled.state is None


def test_a_state_that_can_not_be_copied_leaves_what_is_there(filled: MemorySlot) -> None:
    with pytest.raises(LeafError, match="lock"):
        filled.write(State(4, 7), {"lock": object()})
    assert filled.state == State(3, 7)


def test_growing_keeps_what_is_there_and_stops_at_the_limit(fd: int) -> None:
    slot = slot_of(fd, limit=8 << 20)
    fill(slot, 3.0)
    missing = slot.room_for(state_dict(4.0, 1_000_000))
    assert missing > 0
    assert slot.room_for(state_dict(4.0)) == 0
    slot.grow(missing)
    assert slot.room_for(state_dict(4.0, 1_000_000)) == 0
    assert same(slot.read(), state_dict(3.0))
    with pytest.raises(TooLarge, match="MiB, and a copy of it in memory may take 8 MiB"):
        slot.grow(slot.room_for(state_dict(4.0, 3_000_000)))
    assert same(slot.read(), state_dict(3.0))


def flip(fd: int, at: int) -> None:
    byte = os.pread(fd, 1, at)
    os.pwrite(fd, bytes([byte[0] ^ 1]), at)


def test_any_bit_that_has_changed_is_noticed(fd: int, filled: MemorySlot) -> None:
    *_, manifest, digests, _data = struct.unpack("<QqqQQQ", os.pread(fd, 48, 16))
    start = -(-(4096 + manifest + digests) // mmap.PAGESIZE) * mmap.PAGESIZE
    head = [0, 11, 12, 15, 16, 30, 50, 4096, 4096 + manifest - 1, 4096 + manifest, 4096 + manifest + digests - 1]
    for at in head:
        flip(fd, at)
        assert filled.state is None, at
        flip(fd, at)
    for at in (start, start + 1_000_001, start + 1_200_000):
        flip(fd, at)
        assert filled.state == State(3, 7)
        into = state_dict(0.0)
        with pytest.raises(TransferError, match="has changed since it was copied"):
            filled.read(into)
        assert same(into, state_dict(0.0))  # nothing is written before all is checked
        flip(fd, at)
    assert same(filled.read(), state_dict(3.0))


@pytest.mark.parametrize("field", range(3, 6))
@pytest.mark.parametrize("value", [0, 1, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_sizes_that_lie_are_no_state(fd: int, filled: MemorySlot, field: int, value: int) -> None:
    os.pwrite(fd, struct.pack("<Q", value), 16 + 8 * field)
    assert filled.state is None
    with pytest.raises(TransferError):
        filled.read()


def test_a_seal_around_lies_is_caught_too(fd: int, filled: MemorySlot) -> None:
    """By somebody who knows how it is made: what is read is checked like what comes from a network."""
    *_, manifest, digests, _data = struct.unpack("<QqqQQQ", os.pread(fd, 48, 16))
    text = os.pread(fd, manifest, 4096)
    os.pwrite(fd, text.replace(b"300000]", b"900000]"), 4096)
    body = os.pread(fd, 4096 + manifest + digests - 16, 16)
    os.pwrite(fd, struct.pack("<I", zlib.crc32(body)), 12)
    assert filled.state == State(3, 7)
    with pytest.raises(TransferError, match="manifest"):
        filled.read()


def test_it_is_opened_by_its_name_only() -> None:
    memory = CheckpointMemory(1)
    name = memory.names[0][0]
    slot = MemorySlot.open(name, LIMIT)
    assert slot is not None
    fill(slot, 3.0)
    assert MemorySlot.open(name, LIMIT) is None  # one user at a time
    slot.close()
    again = MemorySlot.open(name, LIMIT)
    assert again is not None
    assert again.state == State(3, 7)
    pid, fd, tag = name.split("/")
    other = f"{pid}/{fd}/{secrets.token_hex(16)}"
    for wrong in (other, f"{pid}/0/{tag}", f"999999999/{fd}/{tag}", "", "/etc/passwd", f"{pid}/{fd}/../{tag}"):
        assert MemorySlot.open(wrong, LIMIT) is None
    memory.close()


class Killed(BaseException):
    """Where a SIGKILL would have come."""


def points(monkeypatch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Die at the so many-th thing that a writer does to the memory."""
    seen: list[str] = []

    def then(name: str, do: Any) -> Any:
        def step(*args: Any) -> Any:
            seen.append(name)
            if len(seen) > at:
                raise Killed
            return do(*args)

        return step

    def halves(sources: list[Any], starts: list[int], buffer: Any) -> None:
        for source, start in zip(sources, starts, strict=True):
            then("copy", real)([source], [start], buffer)

    real = module.copy_to_host
    monkeypatch.setattr(module, "copy_to_host", halves)
    monkeypatch.setattr(module, "digest", then("digest", module.digest))
    monkeypatch.setattr(MemorySlot, "erase", then("erase", MemorySlot.erase))
    monkeypatch.setattr(memory_slot.SlotHead, "write", then("head", memory_slot.SlotHead.write))
    monkeypatch.setattr(memory_slot, "seal", then("seal", memory_slot.seal))
    return seen


def test_a_writer_that_is_killed_anywhere_leaves_the_old_state_or_none(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = slot_of(fd)
    fill(slot, 3.0)
    for at in range(100):
        with monkeypatch.context() as patch:
            seen = points(patch, at)
            try:
                fill(slot, 4.0)
            except Killed:
                pass
        found = slot_of(fd)
        if len(seen) <= at:
            assert same(found.read(), state_dict(4.0))
            assert set(seen) == {"erase", "head", "copy", "digest", "seal"}
            return
        assert found.state == (State(3, 7) if at == 0 else None), seen
        fill(slot, 3.0)
    raise AssertionError("it never ends")
