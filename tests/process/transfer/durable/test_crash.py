"""Killed at every operation on the storage: there always is a complete checkpoint, and no garbage after the next save."""

from __future__ import annotations

import pathlib

import pytest
import torch

from tests.torch.transfer.durable.faulty import FaultyFileSystem, Killed
from tests.torch.transfer.durable.test_crash import STEPS, attempt, operations, state
from torchft_x.transfer.durable import names
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.store import Store


def test_a_kill_at_each_operation(tmp_path: pathlib.Path) -> None:
    total = operations(tmp_path / "whole")
    assert total > 40
    reached = []  # the newest after each kill
    for k in range(1, total + 1):
        url = f"faulty://{tmp_path}/{k}"
        FaultyFileSystem.reset(fatal=k)
        with pytest.raises(Killed):
            attempt(url, 0)
        FaultyFileSystem.reset()
        store = Store(url)
        last = newest(store)
        reached.append(0 if last is None else last.step)
        if last is not None:
            assert torch.equal(Saved(store, last).load()["b"], state(last.step)["b"])
        attempt(url, 1, (*STEPS, 500))
        found = [n for folder in store.children() if (n := names.parse(folder)) is not None]
        assert [n.step for n in sorted(found)] == [400, 500], k
        assert all(Saved(store, name).verify() > 0 for name in found)
    assert reached == sorted(reached)  # what was complete is never lost again
    assert set(reached) == {0, *STEPS}
