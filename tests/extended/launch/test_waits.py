"""What the launcher's processes do after seconds of waiting; tests/process/launch has the rest."""

from __future__ import annotations

import pickle
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.process.launch.driven import drive  # noqa: F401
from tests.process.launch.keeper.kept import STUBBORN, keep, role  # noqa: F401
from tests.process.launch.supervisor.test_coordination import SLEEPER, Cluster, sleeping
from tests.process.launch.supervisor.test_lighthouse import kept, taken_from_it
from tests.process.launch.test_strangers import SCRIPT, Payload, below, wait_until_up, write_into_store
from tests.started import ended
from tests.util import listeners, wait_for
from torchft_x.__main__ import main
from torchft_x.launch.process import process_tree
from torchft_x.launch.process.restarts import LIGHTHOUSE_RULES
from torchft_x.rpc.lighthouse.failover.lease_directory import open_lease

pytestmark = [pytest.mark.timeout(300)]


def test_groups_that_are_slow_to_go_are_waited_for_and_then_killed(keep) -> None:
    job = keep(role("trainer", STUBBORN, kind="trainer", replicas=2))
    job.until("RUNNING")
    wait_for(lambda: "here" in job.printed("trainer", 1), 20, "group 1")
    pid = job.pid(1)
    assert main(["scale", str(job.run_dir), "--replicas", "1"]) == 0
    assert process_tree.is_alive(pid)
    assert main(["scale", str(job.run_dir), "--replicas", "2"]) == 0
    ended(pid)
    wait_for(lambda: job.pid(1) not in (0, pid), 20, "group 1, again")


def test_a_lone_node_says_for_what_it_waits(tmp_path: Path) -> None:
    run = Cluster(tmp_path, SLEEPER, groups=1)
    try:
        run.supervise(0, 0)
        run.wait_for(lambda: "node 0 of group 0 waits until all 2 nodes are ready" in run.text("0.0"), 20.0, "the word")
        run.wait_for(lambda: "Group 0 waits for node 1 to come." in run.text("lighthouse"), 20.0, "the reason")
        run.supervise(0, 1)
        sleeping(run, 1, (0,))
    finally:
        run.close()


def test_who_has_lost_the_lease_stands_by_and_that_is_no_fault_of_it(tmp_path: Path) -> None:
    with kept(tmp_path, "--lease_dir", str(tmp_path)) as lh:
        register = open_lease(tmp_path / "lease")
        for attempt in range(1, LIGHTHOUSE_RULES.loop + 2):
            taken = taken_from_it(register)
            wait_for(lambda n=attempt: lh.output().count("This lighthouse stands by;") >= n, 20.0, "it to stand by")
            assert register.swap(taken, replace(taken, owner=""))
            wait_for(lambda n=attempt: lh.serves(n + 1), 20.0, "it to serve again")
        lh.process.send_signal(signal.SIGTERM)
        assert lh.wait() == 0
        entry = register.read()
        assert entry.owner == "", "it gives the lease back"


def test_what_a_stranger_writes_into_the_groups_store_is_not_executed(drive, tmp_path: Path) -> None:
    run = drive(SCRIPT, workers=2)
    wait_until_up(run, 2)
    executed = tmp_path / "executed"
    name = "group-1-attempt-0"
    written = [
        at.port for at in listeners(below(run)) if write_into_store(at.port, name, pickle.dumps(Payload(executed)))
    ]
    assert written  # the workers' own store: loopback, no pickle
    with pytest.raises(AssertionError):
        wait_for(executed.exists, 3.0, "the stranger's code")
