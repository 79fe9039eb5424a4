"""Failures of the gloo group: what releases a wait, how fast, and what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from types import ModuleType

import pytest
import torch

from tests.process.programs import python
from tests.torch.comm.conformance import LONG, Meeting
from tests.util import scaled, wait_for
from torchft_x.comm.gloo import device as devices
from torchft_x.comm.gloo import group as gloo
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.errors import CollectiveError

# -- real processes --


@pytest.mark.parametrize(("module", "lock"), [(devices, "_lock"), (gloo, "_birth")])
def test_a_child_forked_under_a_lock_has_a_group_of_its_own(module: ModuleType, lock: str) -> None:
    with getattr(module, lock):
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(scaled(10)))
            code = 1
            try:
                group = ProcessGroupGloo(LONG, host="127.0.0.1")
                group.configure("", "a", 0, 1)
                group.shutdown()
                code = 0
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_touches_no_device_of_its_parents() -> None:
    device = devices.lease("127.0.0.1")
    child = os.fork()
    if child == 0:
        fine = not device.own and device.connections() is None and device.addresses() == []
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    devices.give_back(device)


MEMBER_THAT_STOPS = """
import os, signal, sys, torch
from torchft_x.comm.gloo.group import ProcessGroupGloo
group = ProcessGroupGloo(300, host="127.0.0.1")
group.configure(sys.argv[1], "b", 1, 2)
tensors = [torch.zeros(25_000_000)]
if sys.stdin.readline() == "begin\\n":
    work = group.broadcast(tensors) if sys.argv[2] == "broadcast" else getattr(group, sys.argv[2])(tensors, 0, 1)
    os.kill(os.getpid(), signal.SIGSTOP)
"""
MEMBER_THAT_SENDS = """
import sys, time, torch
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.errors import CollectiveError
group = ProcessGroupGloo(300, host="127.0.0.1")
group.configure(sys.argv[1], "a", 0, 2)
work = group.broadcast([torch.ones(25_000_000)])
assert sys.stdin.readline() == "stopped\\n"
time.sleep(0.2)  # so that gloo has filled the connection; sooner the abort finds the send where gloo knows of it
group.abort()
try:
    work.wait()
except CollectiveError as e:
    assert "the group was aborted" in str(e), e
    assert work.is_completed()
    group.configure("", "a", 0, 1)  # the next one doesn't wait for what gloo still holds
    t = torch.ones(1)
    assert group.allreduce([t]).wait()
    print("released", flush=True)
"""


def test_an_abort_releases_who_sends_to_a_stopped_member(meeting: Meeting) -> None:
    """gloo itself forgets a send that waits for room when the connection breaks, and ends it at the group's timeout."""
    python, address = [sys.executable, "-W", "ignore", "-c"], meeting()
    other = subprocess.Popen([*python, MEMBER_THAT_STOPS, address, "broadcast"], stdin=subprocess.PIPE, text=True)
    sender = subprocess.Popen(
        [*python, MEMBER_THAT_SENDS, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdin is not None
        print("begin", file=other.stdin, flush=True)
        wait_for(lambda: os.waitpid(other.pid, os.WNOHANG | os.WUNTRACED)[0] == other.pid, what="it is stopped")
        out, _ = sender.communicate("stopped\n", timeout=scaled(30))
        assert (out, sender.returncode) == ("released\n", 0)  # and its end wasn't held up either
    finally:
        for process in (other, sender):
            process.kill()
            process.wait()


@pytest.mark.parametrize(("ours", "theirs"), [("broadcast", "broadcast"), ("recv", "send")])
def test_the_death_of_who_is_half_way_through_a_message_is_noticed(meeting: Meeting, ours: str, theirs: str) -> None:
    """gloo itself ends the operation at the group's timeout; nobody aborts the group here."""
    command = [sys.executable, "-W", "ignore", "-c", MEMBER_THAT_STOPS, address := meeting(), theirs]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    group = ProcessGroupGloo(300, host="127.0.0.1")
    try:
        group.configure(address, "a", 0, 2)
        present = group._generations.present
        assert present is not None
        wait_for(lambda: present._members, what="the members' names, which come after the connections")
        tensors = [torch.ones(25_000_000)]
        work = group.broadcast(tensors) if ours == "broadcast" else getattr(group, ours)(tensors, 1, 1)
        assert other.stdin is not None
        print("begin", file=other.stdin, flush=True)
        wait_for(lambda: os.waitpid(other.pid, os.WNOHANG | os.WUNTRACED)[0] == other.pid, what="it is stopped")
        other.kill()
        with pytest.raises(CollectiveError, match=f"{ours} on rank 0 of 2 failed: .*rank 1 \\(b\\)") as caught:
            work.wait(timedelta(seconds=scaled(60)))
        assert caught.value.suspects == ("b",)
        assert "timed out" not in str(caught.value)
    finally:
        other.kill()
        other.wait()
        group.shutdown()


def test_process_may_end_in_the_middle_of_everything(meeting: Meeting) -> None:
    script = (
        "import sys, threading, torch\n"
        "from torchft_x.comm.gloo.group import ProcessGroupGloo\n"
        "a, b, c = [ProcessGroupGloo(300, host='127.0.0.1') for _ in range(3)]\n"
        f"t = threading.Thread(target=a.configure, args=({meeting()!r}, 'a', 0, 2))\n"
        "t.start(); b.configure(t._args[0], 'b', 1, 2); t.join()\n"
        "work = a.allreduce([torch.ones(3)])\n"
        f"threading.Thread(target=c.configure, args=({meeting()!r}, 'c', 0, 2), daemon=True).start()\n"
        "print('end', flush=True)\n"
    )
    assert python("-W", "ignore", "-c", script).stdout == "end\n"
