"""Copies in memory without a supervisor that holds any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.process.train.watched_worker import options
from torchft_x.train.context.memory_checkpoint import open_memory


def test_without_memory_there_is_nothing_to_agree_on() -> None:
    nobody: Any = SimpleNamespace()
    assert open_memory(options(0), nobody, nobody, nobody) is None
