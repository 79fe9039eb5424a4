"""Owners that are garbage: their ends come, on a thread of their own, wherever the collector was at work."""

from __future__ import annotations

import gc
import os
import threading

from tests.process.programs import python
from tests.torch.comm.test_forgotten import (
    Owner,
    by_hand,  # noqa: F401
)
from tests.util import scaled, wait_for
from torchft_x.comm.rebuilt import end_when_forgotten


def test_a_forked_child_ends_its_own_only(by_hand: None) -> None:
    calls: list[str] = []
    inherited = Owner()
    end_when_forgotten(inherited, lambda: calls.append("its parent's"))
    pid = os.fork()
    if pid == 0:
        del inherited
        ended = threading.Event()
        end_when_forgotten(Owner(), ended.set)
        gc.collect()
        os._exit(0 if ended.wait(scaled(10)) and not calls else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    del inherited
    gc.collect()
    wait_for(lambda: calls == ["its parent's"], what="the end in the parent")


def test_none_comes_at_the_end_of_the_process() -> None:
    script = (
        "from torchft_x.comm.rebuilt import end_when_forgotten\n"
        "class Owner: pass\n"
        "owner = Owner()\n"
        "end_when_forgotten(owner, lambda: print('too late', flush=True))\n"
    )
    done = python("-c", script)
    assert (done.stdout, done.stderr) == ("", "")
