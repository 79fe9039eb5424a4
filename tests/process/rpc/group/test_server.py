"""A group server between its ranks and the lighthouse: quorums, votes, deadlines with reasons, outages, ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.rpc.support import Asking, client, group, lighthouse
from tests.util import scaled
from torchft_x.core.types import State
from torchft_x.errors import DeadlineError

ROOT = Path(__file__).parents[4]


def test_a_deadline_names_the_missing_rank() -> None:
    with lighthouse() as lh, group("a:1", lh.address(), world_size=2) as a, client(a.address()) as one:
        for who in (a, one):
            with pytest.raises(DeadlineError, match="group rank 1 of 2 has not asked"):
                who.quorum(group_rank=0, state=State(), timeout=0.3)
        asks = [Asking(a), Asking(one, 1)]
        quorum_id = asks[0].result().quorum.id
        for who in (a, one):
            with pytest.raises(DeadlineError, match="group rank 1 of 2 has not voted"):
                who.should_commit(0, 0, quorum_id, True, 0.3)


FORKS = """
import os
from torchft_x.core.types import State
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.rpc.group.server import GroupServer
lighthouse = LighthouseServer("127.0.0.1:0", 1)
server = GroupServer(replica_id="a:1", lighthouse=lighthouse.address(), store_address="", world_size=1, bind="127.0.0.1:0")
state, codes = State(), []
for step in range(40):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    quorum = server.quorum(group_rank=0, state=state, timeout=10.0).quorum
    assert server.should_commit(0, step, quorum.id, True, 10.0)[0]
    state = State(step + 1, quorum.id)
assert codes == [0] * 40, codes
server.shutdown()
lighthouse.shutdown()
"""


def test_forks_disturb_neither_the_servers_nor_the_children() -> None:
    # With gRPC's own fork handlers every third child dies with SIGSEGV: a DataLoader's worker would.
    done = subprocess.run([sys.executable, "-c", FORKS], cwd=ROOT, capture_output=True, text=True, timeout=scaled(60.0))
    assert (done.returncode, done.stderr) == (0, "")
