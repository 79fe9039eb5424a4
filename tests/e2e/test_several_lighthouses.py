"""A list of lighthouses with real processes: the standby takes over, and nobody ever trains apart (decision 16)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.several import Link, cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_the_standby_takes_over_and_the_first_one_stays_out_of_it(tmp_path: Path) -> None:
    """(a), (b) and (c) of issue 5: the first one is lost for good; comes back; and a standby issues nothing before."""
    with cluster(tmp_path) as (first, standby, job):
        first.start("--new_job")
        addresses = [first.address, standby.address]
        for group in "012":
            job.start(group, addresses, 3)
        job.wait_until_training(3, 120)
        standby.start()  # a brand-new one
        job.go_on(40, 60, "the groups to train at the first lighthouse")
        assert (standby.quorum, standby.here()) == (0, set())
        assert first.here() == {"0", "1", "2"}

        first.kill_once()  # its keeper starts it again: nobody moves
        job.wait_for(lambda: first.here() == {"0", "1", "2"} and first.issued, 60, "the groups to be back")
        job.go_on(40, 60, "the groups to go on at the first lighthouse")
        assert (standby.quorum, standby.here()) == (0, set())

        first.kill()
        job.wait_for(lambda: standby.here() == {"0", "1", "2"}, 60, "the groups to come over")
        job.go_on(60, 60, "the groups to go on at the standby")
        assert job.lives() == {"0": 1, "1": 1, "2": 1}, "a trainer has died"
        assert not any(job.missed(g) for g in "012")
        job.wait_for(lambda: standby.issued, 30, "a quorum of the standby's own")

        os.kill(job.worker("2"), signal.SIGKILL)
        job.wait_for(lambda: job.lives()["2"] == 2, 60, "the next life of group 2")
        job.wait_until_training(3, 60)
        job.wait_for(lambda: standby.here() == {"0", "1", "2"}, 60, "group 2 at the standby")
        job.go_on(30, 60, "all three to go on", "2")

        first.start()
        job.go_on(60, 60, "the groups to stay at the standby")
        assert standby.here() == {"0", "1", "2"}
        assert (first.quorum, first.here()) == (0, set()), "the first lighthouse serves somebody"
        assert job.lives() == {"0": 1, "1": 1, "2": 2}
        assert not any(job.missed(g) for g in "01")

        last = standby.quorum
        standby.kill()  # and back: the first one has been told nothing since, but by those that come
        job.wait_for(lambda: first.here() == {"0", "1", "2"}, 60, "the groups to come back")
        job.wait_for(lambda: first.issued and first.quorum > last, 30, "a quorum of the first one's own")
        job.go_on(60, 60, "the groups to go on at the first lighthouse")
        job.stop()
        assert job.findings() == []


def test_nobody_trains_apart_where_each_lighthouse_is_reached_by_half_of_the_groups(tmp_path: Path) -> None:
    """(d): the half at the lighthouse that has issued the quorum goes on, the other waits and comes over."""
    with cluster(tmp_path) as (first, standby, job):
        first.start("--new_job")
        standby.start()
        links = {(g, h.place): Link(h.address) for g in "01" for h in (first, standby)}
        for group in "01":
            job.start(group, [links[group, 0].address, links[group, 1].address], 2)
        job.wait_until_training(2, 120)
        links["0", 1].cut()
        links["1", 0].cut()
        job.go_on(40, 90, "group 0 to go on alone", "0")
        job.wait_for(lambda: standby.here() == {"1"}, 60, "group 1 at the standby")
        stands = job.furthest("1")
        job.go_on(200, 60, "group 0 to go on alone", "0")
        assert job.furthest("1") == stands, "group 1 has trained apart"
        assert standby.quorum == 0
        for link in links.values():
            link.mend()
        job.wait_for(lambda: job.furthest("1") > stands + 60, 90, "group 1 to come over")
        assert first.here() == {"0", "1"}
        job.stop()
        assert job.findings() == []
