"""Groups as real processes whose training thread stands still while everything else of the process lives (R20)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.train.jobs import Group, lighthouse
from tests.util import wait_for


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("place", ["before", "backward", "after"])
def test_the_others_go_on_without_it_with_their_gradients_and_it_comes_back(place: str, tmp_path: Path) -> None:
    """Without a supervisor, at the defaults: nobody ends, nobody loses a step, and all are bit-equal."""
    with lighthouse(1) as address:
        groups = [Group(i, address, tmp_path, "tests.train.late_worker", place) for i in range(3)]
        try:
            wait_for(lambda: all(g.last_step() > 10 for g in groups), 60, "all groups to train together")
            hold = tmp_path / "group1.txt.hold"
            hold.touch()
            wait_for(lambda: time.monotonic() - groups[1].lines()[-1][2] > 1.0, 30, "its training to stand still")
            there = groups[0].last_step()
            wait_for(lambda: all(g.last_step() > there + 10 for g in groups[::2]), 50, "the others to go on")
            assert groups[1].last_step() <= there + 1
            hold.unlink()
            back = groups[1].last_step()
            wait_for(lambda: groups[1].last_step() > back + 10, 50, "it to be back")
            last = max(g.last_step() for g in groups) + 10
            (tmp_path / "new").write_text(str(last))
            (tmp_path / "new").rename(tmp_path / "stop")
            wait_for(lambda: all(g.process.poll() is not None for g in groups), 60, "the end of the run")
            assert [g.process.returncode for g in groups] == [0, 0, 0]
        finally:
            for g in groups:
                if g.process.poll() is None:
                    g.kill()
    assert [len(g.lines("drop")) for g in groups[::2]] == [0, 0]
    by_step: dict[int, set[str]] = {}
    for g in groups:
        for step, digests in g.digests().items():
            by_step.setdefault(step, set()).update(digests)
    assert sorted(by_step) == list(range(1, last + 1))
    assert [s for s, digests in by_step.items() if len(digests) > 1] == []
