"""One of several lighthouses: what it says while it stands by, and what it takes over."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.process.rpc.lighthouse.failover.test_standby import (
    House,
    houses,  # noqa: F401
)
from tests.util import wait_for


def test_a_lease_that_is_deleted_is_made_again_and_the_next_one_goes_on_with_the_journal(
    houses: tuple[House, House],
) -> None:
    first, second = houses
    shutil.rmtree(first.folder / "lease")
    wait_for(lambda: bool(first.lost), 20, "the first one to notice")
    assert "its entry in" in first.lost[0]
    second.serve()
    assert second.held.lease.entry.epoch == 2
    assert Path(second.held.journal.path).name == "journal.2"
