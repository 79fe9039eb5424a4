"""Groups as real processes whose training thread stands still while everything else of the process lives (R20)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.process.train import late_worker
from tests.torch.train.jobs import check_equal, finish, lighthouse, running, wait_steps
from tests.util import wait_for


@pytest.mark.timeout(200)
def test_the_others_go_on_without_it_with_their_gradients_and_it_comes_back(tmp_path: Path) -> None:
    """Without a supervisor, at the defaults: nobody ends, nobody loses a step, and all are bit-equal."""
    with lighthouse(1) as address, running(3, address, tmp_path, late_worker.main) as groups:
        wait_steps(groups, 10, "all groups to train together")
        groups[1].file("hold").touch()
        wait_for(lambda: time.monotonic() - groups[1].lines()[-1][2] > 1.0, 30, "its training to stand still")
        there = groups[0].last_step()
        wait_steps(groups[::2], 11, "the others to go on")
        assert groups[1].last_step() <= there + 1
        groups[1].file("hold").unlink()
        back = groups[1].last_step()
        wait_for(lambda: groups[1].last_step() > back + 10, 50, "it to be back")
        last = finish(groups, 10)
    assert [len(g.lines("drop")) for g in groups[::2]] == [0, 0]
    check_equal(groups, last)
