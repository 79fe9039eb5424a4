"""A group that comes back copies the state from several carriers, and one of them dies meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.process.train import mirrors_worker
from tests.torch.train.jobs import check_equal, finish, lighthouse, running, wait_steps
from tests.util import wait_for


@pytest.mark.timeout(200)
def test_a_heal_outlives_its_source(tmp_path: Path) -> None:
    with lighthouse() as address, running(3, address, tmp_path, mirrors_worker.main) as groups:
        source, other, newcomer = groups
        wait_steps(groups, 6)
        newcomer.kill()
        wait_steps([source, other], 6)
        before = len(newcomer.lines("copied")), len(newcomer.lines("failed"))
        source.file("die").touch()
        newcomer.start()
        wait_for(lambda: source.process.exitcode is not None, 60, "the source to die")
        assert source.process.exitcode == -signal.SIGKILL
        wait_steps([other, newcomer], 6)
        copied = newcomer.lines("copied")[before[0] :]
        assert [mirrors for mirrors, _, _ in copied] == [1], "one heal, with one mirror"
        assert len(newcomer.lines("failed")) == before[1]

        source.file("die").unlink()
        source.start()
        wait_steps(groups, 6)
        last = finish(groups, 10)
    check_equal(groups, last)
