"""A supervisor's reports arrive in the end, and orders come back."""

from __future__ import annotations

from tests.unit.rpc.supervisor.test_client import supervisor
from tests.unit.rpc.support import lighthouse
from tests.util import scaled, wait_for
from torchft_x.core.job.standalone_sidecars import DONE
from torchft_x.rpc.supervisor.client import SupervisorClient


def test_a_sidecar_is_told_when_the_groups_of_its_job_are_done() -> None:
    with lighthouse() as lh, supervisor(lh.address(), "", sidecar="eval") as (_, _, stops):
        wait_for(lambda: "eval" in lh.status()["sidecars"], what="the sidecar to be known")
        group_of_it = SupervisorClient(lh.address(), "a", "host", "boot")
        wait_for(lambda: lh.status()["announced"] == ["a"], what="the group to be announced")
        group_of_it.done(0, "")
        group_of_it.close(scaled(10))
        assert wait_for(lambda: stops, what="the order to stop")[0][:2] == (0, DONE)
