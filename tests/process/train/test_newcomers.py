"""What a group that comes while others train costs these: nothing for its first step, and no more than it copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.train import newcomer_worker
from tests.torch.train.jobs import check_equal, finish, lighthouse, running, wait_steps
from tests.util import wait_for


@pytest.mark.timeout(200)
def test_a_heal_that_stands_still_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody ends or drops a step, and the group that copies is back when it moves again."""
    with lighthouse() as address, running(3, address, tmp_path, newcomer_worker.main) as groups:
        *others, newcomer = groups
        wait_steps(groups, 10, "all groups to train together")
        dropped = sum(len(g.lines("drop")) for g in others)
        newcomer.kill()
        wait_steps(others, 5, "the others to go on")
        newcomer.file("fetch").touch()
        newcomer.start()
        wait_for(lambda: newcomer.lines("fetch"), 60, "it to stand still")
        wait_steps(others, 50, "the others to go on")
        newcomer.file("fetch").unlink()
        there = max(g.last_step() for g in groups)
        wait_for(lambda: newcomer.last_step() > there + 5, 60, "the newcomer to train with the others")
        last = finish(groups, 10)
        assert sum(len(g.lines("drop")) for g in others) == dropped
        check_equal(groups, last)
