"""A list of lighthouses with real processes: the standby takes over, and nobody ever trains apart (decision 45)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.extended.jobs.several import Groups, House, Link, cluster
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


def test_the_shared_directory_is_away_for_a_while(tmp_path: Path) -> None:
    """Nobody issues meanwhile, groups run on in what they were granted, and one serves when it is back."""
    with cluster(tmp_path) as (first, standby, job):
        begin(first, standby, job)
        shared, away = first.lease_dir, tmp_path / "away"
        os.rename(shared, away)
        for house in (first, standby):
            job.wait_for(lambda house=house: not _serves(house), 60, "nobody to serve")
        job.go_on(60, 60, "the groups to run on")
        assert not shared.exists()
        os.rename(away, shared)
        job.wait_for(lambda: _serves(first) or _serves(standby), 60, "one that serves")
        assert not (_serves(first) and _serves(standby))
        all_at(job, first if _serves(first) else standby)
        job.go_on(60, 60, "the groups to go on")
        assert job.lives() == {"0": 1, "1": 1, "2": 1}
        job.stop()
        assert job.findings() == []


def test_nobody_trains_apart_where_each_lighthouse_is_reached_by_half_of_the_groups(tmp_path: Path) -> None:
    """Those at the one that serves go on; the others wait at the standby, and come back as soon as they can."""
    with cluster(tmp_path) as (first, standby, job):
        first.start()
        standby.start()
        links = {(g, h.place): Link(h.address) for g in "01" for h in (first, standby)}
        for group in "01":
            job.start(group, [links[group, 0].address, links[group, 1].address], 2)
        job.wait_until_training(2, 120)
        links["0", 1].cut()
        links["1", 0].cut()
        job.go_on(40, 90, "group 0 to go on alone", "0")
        stands = job.furthest("1")
        job.go_on(200, 60, "group 0 to go on alone", "0")
        assert job.furthest("1") == stands, "group 1 has trained apart"
        assert not standby.serves
        for link in links.values():
            link.mend()
        job.wait_for(lambda: job.furthest("1") > stands + 60, 90, "group 1 to come back")
        assert first.here() == {"0", "1"}
        job.stop()
        assert job.findings() == []


def _serves(house: House) -> bool:
    try:
        return house.serves
    except TorchftXError:
        return False
