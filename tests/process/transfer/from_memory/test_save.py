"""``torchft_x checkpoint from-memory``, as a process: from the memory of this one, as a supervisor holds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.process.programs import python
from tests.torch.transfer.durable.saving import save
from torchft_x import env
from torchft_x.core.types import State
from torchft_x.launch.process.checkpoint_memory import CheckpointMemory
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.shard import outline
from torchft_x.transfer.durable.store import Store
from torchft_x.transfer.from_memory.held import KEY, HeldCheckpoint
from torchft_x.transfer.memory_slots import MemorySlot


@pytest.fixture
def memory() -> Iterator[CheckpointMemory]:
    memory = CheckpointMemory(1)
    yield memory
    memory.close()


def hold(memory: CheckpointMemory, url: str | None, step: int = 7, ranks: int = 1) -> None:
    """A worker's copy of that step."""
    weights = torch.full((1000,), float(step))
    state: dict[str, Any] = {"user": weights, "torchft": {"step": step}}
    if url is not None:
        parts = {"parts": {"w": weights}, "torchft": {"step": step}}
        state = {KEY: HeldCheckpoint(url, "a-job", "0-life", 2, outline(parts, ranks=ranks)).tree(), **state}
    slot = MemorySlot.open(memory.names[0][step % 2], 1 << 26)
    assert slot is not None
    slot.grow(slot.room_for(state))
    assert slot.write(State(step, 3), state)
    slot.seal()
    slot.close()


def run(memory: CheckpointMemory) -> tuple[int, str]:
    done = python("-m", "torchft_x", "checkpoint", "from-memory", code=None, **{env.MEMORY_SLOTS: memory.setting(0)})
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_the_newest_copy_is_saved_and_no_password_is_said(memory: CheckpointMemory, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/a run"
    save(Store(url), {"parts": {}, "torchft": {}}, 5, job="a-job")
    hold(memory, url, 7)
    hold(memory, url, 8)
    code, said = run(memory)
    assert (code, said) == (0, f"step 8, which was held in memory, is saved in {url}; a new job goes on from it\n")
    name = newest(Store(url))
    assert name is not None
    loaded = Saved(Store(url), name).load()
    assert (name.step, loaded["torchft"], loaded["parts"]["w"].sum().item()) == (8, {"step": 8}, 8000.0)
    assert run(memory)[1] == f"the checkpoint of step 8 in {url} is as new as what was held in memory\n"
