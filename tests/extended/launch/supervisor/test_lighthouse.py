"""``torchft_x lighthouse`` as processes: what is killed comes back at the same port, and everything ends as it should."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from tests.process.launch.supervisor.test_lighthouse import kept, taken_from_it
from tests.util import wait_for
from torchft_x.launch.supervisor.lighthouse import RULES
from torchft_x.rpc.lighthouse.failover.lease_directory import open_lease


def test_who_has_lost_the_lease_stands_by_and_that_is_no_fault_of_it(tmp_path: Path) -> None:
    with kept(tmp_path, "--lease_dir", str(tmp_path)) as lh:
        register = open_lease(tmp_path / "lease")
        for life in range(1, RULES.loop + 2):
            taken = taken_from_it(register)
            wait_for(lambda n=life: lh.said().count("This lighthouse stands by;") >= n, 20.0, "it to stand by")
            assert register.swap(taken, replace(taken, owner=""))
            wait_for(lambda n=life: lh.serves(n + 1), 20.0, "it to serve again")
        lh.process.send_signal(signal.SIGTERM)
        assert lh.end() == 0
        entry = register.read()
        assert entry.owner == "", "it gives the lease back"
