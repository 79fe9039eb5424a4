"""Copies in memory without a supervisor that holds any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.process.train.watched_worker import options
from torchft_x.core.training.memory_checkpoint import NOTHING
from torchft_x.core.types import State
from torchft_x.train.context.memory_checkpoint import MemoryCheckpoint


def test_without_memory_nothing_is_agreed_copied_or_loaded() -> None:
    nobody: Any = SimpleNamespace()
    memory, state = MemoryCheckpoint(options(0), nobody, nobody, nobody), State(3, 7)
    votes = [memory.vote(torn=torn, behind=False) for torn in (False, True)]
    for commit in (True, False):
        word = memory.decide(votes, 4 if commit else None, 1.0)
        assert word == NOTHING
        memory.receive(word, state if commit else None)
    assert memory.to_load(State()) is None
    memory.maybe_copy(state, nobody)
    memory.copy_last(state, nobody)
    memory.drop()
    assert not memory.lends(1)
    memory.close()
