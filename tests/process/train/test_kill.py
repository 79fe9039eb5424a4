"""Groups as real processes, killed with SIGKILL: survivors go on, the returned group is bit-equal, no step is missing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.torch.train.jobs import check_equal, killed_and_back, lighthouse, running
from tests.util import scaled


@pytest.mark.timeout(400)
def test_kill_and_return(tmp_path: Path) -> None:
    """Of three groups; two are in tests/journeys/test_kills.py."""
    count = 3
    silence = scaled(5.0)  # taken for death; nobody may wait for it
    with lighthouse(1, int(silence * 1000)) as address, running(count, address, tmp_path) as groups:
        waits, last = killed_and_back(groups, random.Random(count), kills=count, together=15, within=0.05, more=50)
    check_equal(groups, last)
    drops = sum(len(g.lines("drop")) for g in groups)
    print(f"{count} groups and kills: survivors' next commit after {[round(w, 3) for w in waits]} s, {drops} drops")
    assert max(waits) < silence
