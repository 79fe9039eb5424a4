"""Groups in child processes: the suite, what a child's death looks like, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.programs import python
from tests.torch.comm.conformance import LONG, Meeting, ramp, wait_error
from tests.torch.comm.members import configure, each
from tests.torch.comm.subprocess.test_group import (
    children,
    helper,
    is_alive,
    pair,  # noqa: F401
)
from tests.util import scaled, wait_for
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


def test_a_forked_process_has_a_helper_of_its_own(pair: list[ProcessGroupBabyGloo], meeting: Meeting) -> None:
    configure(pair, meeting(), 1)
    address, code = meeting(), 1
    pid = os.fork()
    if pid == 0:
        try:
            group = ProcessGroupBabyGloo(scaled(LONG), host="127.0.0.1")
            group.configure(address, "b", 1, 2, 2)
            group.barrier().wait()
            code = 0 if children(helper()) else 2
        finally:
            os._exit(code)
    pair[0].configure(address, "a", 0, 2, 2)
    pair[0].barrier().wait()
    assert os.waitpid(pid, 0)[1] == 0


SCRIPT = """
import multiprocessing, threading
from torchft_x.comm import ProcessGroupBabyGloo
from torchft_x.comm.store.create import host_store
print("run")
store = host_store("127.0.0.1", 60.0)[0]
groups = [ProcessGroupBabyGloo(60.0, host="127.0.0.1") for _ in range(2)]
def configure(rank): groups[rank].configure(f"127.0.0.1:{store.port}/x", str(rank), rank, 2, 1)
other = threading.Thread(target=configure, args=(1,)); other.start(); configure(0); other.join()
for work in [group.barrier() for group in groups]: work.wait()
multiprocessing.set_start_method("spawn")
"""


def test_a_script_runs_once_and_chooses_its_start_method(tmp_path: Path) -> None:
    """Neither the helper nor a child imports the user's script, which has no ``if __name__ == "__main__"``."""
    (tmp_path / "script.py").write_text(SCRIPT)
    assert python(tmp_path / "script.py").stdout == "run\n"


def test_children_end_with_the_trainer(meeting: Meeting, pair: list[ProcessGroupBabyGloo]) -> None:
    """Killed, it has no chance to clean up. Its child hangs."""
    address = meeting()
    script = (
        "import os, time\n"
        "from torchft_x.comm import ProcessGroupBabyGloo\n"
        "if __name__ == '__main__':\n"
        f"    g = ProcessGroupBabyGloo({LONG}, host='127.0.0.1')\n"
        "    try: g.configure('127.0.0.1:1/x', 'a', 0, 2)\n"
        "    except RuntimeError: print('warm', flush=True)\n"
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
        os.kill(pids[1], signal.SIGSTOP)
        trainer.kill()
        wait_error(work)
        wait_for(lambda: not any(map(is_alive, pids)), what="the end of the trainer's children")
    finally:
        trainer.kill()
        trainer.communicate()
