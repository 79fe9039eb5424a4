"""A list of lighthouses with real processes: the standby takes over, and nobody ever trains apart (decision 45)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.extended.jobs.several import Groups, House, cluster
from torchft_x.errors import TorchftXError
from torchft_x.launch.process import process_tree

pytestmark = [pytest.mark.timeout(400)]


def begin(first: House, standby: House, job: Groups) -> None:
    """Three groups train at the first one."""
    first.start()
    standby.start()
    for group in "012":
        job.start(group, [first.address, standby.address], 3)
    job.wait_until_training(3, 120)
    assert first.here() == {"0", "1", "2"}
    assert not standby.serves


def has_all(house: House) -> bool:
    try:
        return house.here() == {"0", "1", "2"}
    except TorchftXError:
        return False


def all_at(job: Groups, house: House) -> None:
    job.wait_for(lambda: has_all(house), 60, "the groups to come over")


def test_the_standby_takes_over_and_the_first_one_stands_by_when_it_is_back(tmp_path: Path) -> None:
    with cluster(tmp_path) as (first, standby, job):
        begin(first, standby, job)
        first.kill_once()  # its keeper starts it again, and it has the lease at once: nobody moves
        job.wait_for(lambda: has_all(first) or has_all(standby), 60, "the groups to be back")
        if standby.serves:  # or Python takes longer to start than a lease lasts, on a busy machine
            first, standby = standby, first
        job.go_on(40, 60, "the groups to go on at the first lighthouse")
        assert not standby.serves

        last = first.quorum
        first.kill()  # kill -9 for good, as with its host
        all_at(job, standby)
        job.go_on(60, 60, "the groups to go on at the standby")
        assert job.lives() == {"0": 1, "1": 1, "2": 1}, "a trainer has died"
        assert not any(job.missed(g) for g in "012")
        assert standby.quorum >= last

        os.kill(job.worker("2"), signal.SIGKILL)
        job.wait_for(lambda: job.lives()["2"] == 2, 60, "the next life of group 2")
        all_at(job, standby)
        job.go_on(30, 60, "all three to go on", "2")

        first.start()
        job.go_on(60, 60, "the groups to stay at the standby")
        assert not first.serves
        standby.kill()
        all_at(job, first)
        job.go_on(60, 60, "the groups to go on at the first lighthouse")
        job.stop()
        assert job.findings() == []


def test_a_holder_that_was_stopped_and_goes_on_issues_nothing(tmp_path: Path) -> None:
    """SIGSTOP, and SIGCONT when the groups have moved and the standby has issued: it ends, and stands by."""
    with cluster(tmp_path) as (first, standby, job):
        begin(first, standby, job)
        server = first.server
        process_tree.send([server], signal.SIGSTOP)
        all_at(job, standby)
        os.kill(job.worker("1"), signal.SIGKILL)  # so that the standby must issue a quorum
        job.wait_for(lambda: job.lives()["1"] == 2, 60, "the next life of group 1")
        all_at(job, standby)
        job.go_on(40, 60, "all three to go on", "1")
        journals = sorted(p.name for p in first.lease_dir.glob("journal.*"))
        before = first.answers
        process_tree.send([server], signal.SIGCONT)
        job.wait_for(lambda: first.answers > before, 60, "its next life")
        assert not first.serves
        assert "This lighthouse ends: " in first.said()
        assert sorted(p.name for p in first.lease_dir.glob("journal.*")) == journals
        assert standby.here() == {"0", "1", "2"}
        job.go_on(40, 60, "the groups to go on at the standby")
        assert job.lives() == {"0": 1, "1": 2, "2": 1}
        job.stop()
        assert job.findings() == []
