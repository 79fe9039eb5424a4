"""A script with a DataLoader's workers: each end and each start method that tests/process leaves out, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.test_loader_workers import holds_its_loader_and_ends, trains_and_ends
from tests.process.train.test_loader import loads_alike

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("method", "end"),
    [("fork", "done"), ("spawn", "SIGTERM"), ("forkserver", "drain"), ("forkserver", "SIGTERM to all")],
)
def test_the_last_step_is_saved_while_the_loader_has_workers(method: str, end: str, tmp_path: Path) -> None:
    trains_and_ends(method, end, tmp_path)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_program_that_still_holds_its_loader_ends(method: str, tmp_path: Path) -> None:
    holds_its_loader_and_ends(method, tmp_path)


def test_spawned_workers_load_what_the_training_process_would(tmp_path: Path) -> None:
    loads_alike("spawn", tmp_path)
