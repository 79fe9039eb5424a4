"""A group server in a process that forks."""

from __future__ import annotations

from tests.process.programs import python

FORKS = """
import os
from tests import rank_calls
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
    quorum = rank_calls.quorum(server, state=state, timeout=10.0).quorum
    assert rank_calls.commit(server, quorum.id, step)[0]
    state = State(step + 1, quorum.id)
assert codes == [0] * 40, codes
server.close()
lighthouse.shutdown()
"""


def test_forks_disturb_neither_the_servers_nor_the_children() -> None:
    # With gRPC's own fork handlers every third child dies with SIGSEGV: a DataLoader's worker would.
    assert python("-c", FORKS).stderr == ""
