"""Copies in a supervisor's memory that are not saved, and why."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.process.transfer.from_memory.test_save import hold, memory  # noqa: F401
from torchft_x import env
from torchft_x.errors import TransferError
from torchft_x.launch.process.checkpoint_memory import CheckpointMemory
from torchft_x.transfer.durable.claim import write_claim
from torchft_x.transfer.durable.store import Store
from torchft_x.transfer.from_memory.save import save_held

REASONS = {
    "no checkpoint": "the script has no Checkpoint",
    "nothing held": "no copy of all ranks is complete",
    "another job": "another job that runs now writes there",
    "several nodes": "a group over several nodes is not saved from memory",
}


@pytest.mark.parametrize("why", REASONS)
def test_why_it_is_not_saved(
    why: str, memory: CheckpointMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path)
    monkeypatch.setenv(env.MEMORY_SLOTS, memory.setting(0))
    if why != "nothing held":
        hold(memory, None if why == "no checkpoint" else url, ranks=2 if why == "several nodes" else 1)
    over = threading.Event()
    if why == "another job":
        write_claim(Store(url), "another", 1)
        threading.Thread(target=lives, args=(Store(url), over), daemon=True).start()
    try:
        with pytest.raises(TransferError, match=REASONS[why]):
            save_held()
    finally:
        over.set()


def lives(store: Store, over: threading.Event) -> None:
    beat = 1
    while not over.wait(0.05):
        beat += 1
        write_claim(store, "another", beat)
