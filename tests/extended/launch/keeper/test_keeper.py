"""Real keepers with real processes, which get real signals. The roles' programs are small scripts: no lighthouse, no training."""

from __future__ import annotations

from tests.process.launch.keeper.kept import STUBBORN, gone, keep, role  # noqa: F401
from tests.util import wait_for
from torchft_x.launch.keeper.commands import main as command
from torchft_x.launch.process import process_tree


def test_groups_that_are_slow_to_go_are_waited_for_and_then_killed(keep) -> None:
    job = keep(role("trainer", STUBBORN, kind="trainer", replicas=2))
    job.until("RUNNING")
    wait_for(lambda: "here" in job.printed("trainer", 1), 20, "group 1")
    pid = job.pid(1)
    assert command("scale", [str(job.run_dir), "--replicas", "1"]) == 0
    assert process_tree.is_alive(pid)
    assert command("scale", [str(job.run_dir), "--replicas", "2"]) == 0
    gone(pid)
    wait_for(lambda: job.pid(1) not in (0, pid), 20, "group 1, again")
