"""Groups in child processes: the suite, what a child's death looks like, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.torch.comm.conformance import LONG, Meeting, ramp, wait_error
from tests.torch.comm.members import configure, each
from tests.torch.comm.subprocess.test_group import (
    helper,
    is_alive,
    pair,  # noqa: F401
)
from tests.util import wait_for
from torchft_x.comm.subprocess.group import ProcessGroupBabyGloo

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="groups in a child process need Linux; run this on a Linux machine"
)


def test_killed_helper_is_replaced(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    """The children end with the helper, and the next configure starts another."""
    configure(pair, meeting(), 4)
    work = pair[0].allreduce([ramp(0)])
    os.kill(helper(), signal.SIGKILL)
    wait_error(work)
    configure(pair, meeting(), 5)
    each(pair, lambda rank, group: group.barrier().wait())


def test_a_forked_process_touches_nothing(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    """A data loader's worker inherits the group, and may drop it."""
    configure(pair, meeting(), 1)
    pid = os.fork()
    if pid == 0:
        pair[0].shutdown()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    each(pair, lambda rank, group: group.allreduce([ramp(rank)]).wait())


def test_children_end_with_the_trainer(meeting: Meeting, pair: list[ProcessGroupBabyGloo]) -> None:
    """Killed, it has no chance to clean up."""
    address = meeting()
    script = (
        "import os, time\n"
        "from torchft_x.comm import ProcessGroupBabyGloo\n"
        "if __name__ == '__main__':\n"
        f"    g = ProcessGroupBabyGloo({LONG}, host='127.0.0.1')\n"
        "    from torchft_x.comm.subprocess.fork_server import NURSERY\n"
        "    first = NURSERY.child(); first[1].recv(); print('warm', flush=True)\n"
        "    first[1].half_close()\n"
        f"    g.configure({address!r}, 'a', 1, 2, 1)\n"
        "    from tests.torch.comm.subprocess.test_group import children, helper\n"
        "    from tests.util import wait_for\n"
        "    wait_for(lambda: len(children(helper())) == 1)\n"
        "    print(helper(), *children(helper()), flush=True)\n"
        f"    time.sleep({LONG})\n"
    )
    trainer = subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "warm\n"
        pair[0].configure(address, "b", 0, 2, 1)
        work = pair[0].allreduce([ramp(0)])
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 2
        trainer.kill()
        wait_error(work)
        wait_for(lambda: not any(map(is_alive, pids)), what="the end of the trainer's children")
    finally:
        trainer.kill()
        trainer.communicate()
