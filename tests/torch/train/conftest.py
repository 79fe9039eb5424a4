"""Lighthouses for the groups of one test, which leave at its end, and the folder of their events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torch.train import jobs
from tests.torch.train.fakes import run_threads


@pytest.fixture
def address() -> Iterator[str]:
    """Give the address of a lighthouse that lets a group train alone."""
    with _left(1) as address:
        yield address


@pytest.fixture
def pair_address() -> Iterator[str]:
    """Give the address of a lighthouse that lets no group train alone."""
    with _left(2) as address:
        yield address


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder into which all groups write their events."""
    monkeypatch.setenv("TORCHFT_X_RUN_DIR", str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def _left(min_replicas: int) -> Iterator[str]:
    jobs.managers.clear()
    with jobs.lighthouse(min_replicas) as address:
        yield address
        made = jobs.managers.copy()
        run_threads(len(made), lambda i: made[i].shutdown())
