"""Killed at every operation on the storage: there always is a complete checkpoint, and no garbage after the next save."""

from __future__ import annotations

import pathlib

import pytest
import torch

from tests.torch.transfer.durable.faulty import FaultyFileSystem, Killed
from tests.torch.transfer.durable.saving import save
from torchft_x.errors import TransferError
from torchft_x.transfer.durable import writer
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.store import Store

KEEP = 2
RANKS = 2
STEPS = (100, 200, 300, 400)


def state(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((40_000,), float(step)), "b": torch.full((3,), float(step))}


def attempt(url: str, number: int, steps: tuple[int, ...] = STEPS) -> None:
    """Resume from the newest, and save all steps after it."""
    store = Store(url)
    last = newest(store)
    begun = 0 if last is None else last.step
    if last is not None:
        assert torch.equal(Saved(store, last).load()["w"], state(last.step)["w"])
    for step in (s for s in steps if s > begun):
        done = save(store, state(step), step, who=f"0-{number}", ranks=RANKS)
        writer.sweep(store, done, KEEP)


def operations(folder: pathlib.Path) -> int:
    FaultyFileSystem.reset()
    attempt(f"faulty://{folder}", 0)
    return FaultyFileSystem.count


def test_two_kills_in_a_row(tmp_path: pathlib.Path) -> None:
    total = operations(tmp_path / "whole")
    for k in range(1, total + 1, 3):
        url = f"faulty://{tmp_path}/{k}"
        for number, fatal in enumerate((k, k // 2 + 1)):
            FaultyFileSystem.reset(fatal=fatal)
            try:
                attempt(url, number)
            except Killed:
                pass
        FaultyFileSystem.reset()
        attempt(url, 2)
        last = newest(Store(url))
        assert last is not None
        assert last.step == 400
        assert Saved(Store(url), last).verify() > 0


def test_a_full_store_is_an_error_and_costs_nothing_that_is_there(tmp_path: pathlib.Path) -> None:
    url = f"faulty://{tmp_path}/run"
    FaultyFileSystem.reset()
    first = save(Store(url), state(100), 100)
    needed = FaultyFileSystem.count
    for k in range(1, needed):
        FaultyFileSystem.reset(fatal=k, error=OSError)
        with pytest.raises(TransferError, match="could not be written"):
            save(Store(url), state(200), 200, who=f"0-{k}")
        FaultyFileSystem.reset()
        assert newest(Store(url)) == first
    last = save(Store(url), state(300), 300)
    writer.sweep(Store(url), last, KEEP)
    assert sorted(Store(url).children()) == [str(first), str(last)]
