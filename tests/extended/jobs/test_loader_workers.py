"""A script with a DataLoader's workers that are not forked from it, in each way in which it can end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.test_loader_workers import ENDS, trains_and_ends

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("end", ENDS)
def test_the_last_step_is_saved_while_the_loader_has_workers(end: str, method: str, tmp_path: Path) -> None:
    trains_and_ends(method, end, tmp_path)
