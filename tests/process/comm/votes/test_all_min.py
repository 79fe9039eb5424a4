"""The least of everybody's numbers: right for any number of members, released when one is lost, deaf to strangers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.torch.comm.votes.test_all_min import (
    LIMIT,
    Crowd,
    Meeting,
    crowd,  # noqa: F401
    names,
)
from tests.util import scaled
from torchft_x.errors import CollectiveError, DeadlineError

_MEMBER = """
import sys, time
from torchft_x.comm.votes.all_min import AllMin
address, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tally = AllMin("127.0.0.1", 3)
tally.offer(address, rank, [f"g{r}:x" for r in range(size)], 1, 60)
tally.connect(60)
print("connected", flush=True)
tally.minimum([rank] * 3, 60)
time.sleep(600)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_that_is_lost(sent: signal.Signals, crowd: Crowd, meeting: Meeting) -> None:
    (tally,), address = crowd(1), meeting()
    child = subprocess.Popen([sys.executable, "-c", _MEMBER, address, "1", "2"], stdout=subprocess.PIPE, text=True)
    try:
        tally.offer(address, 0, names(2), 1, scaled(60))
        tally.connect(scaled(60))
        assert child.stdout is not None
        assert child.stdout.readline() == "connected\n"
        assert tally.minimum([5] * 3, LIMIT) == [1] * 3
        os.kill(child.pid, sent)
        began = time.monotonic()
        if sent is signal.SIGKILL:
            with pytest.raises(CollectiveError, match=r"broke at rank 1 \(g1:x\)") as e:
                tally.minimum([5] * 3, LIMIT)
            assert e.value.suspects == ("g1:x",)
            assert time.monotonic() - began < LIMIT / 2
        else:
            with pytest.raises(DeadlineError, match=r"nothing came from rank 1 \(g1:x\)"):
                tally.minimum([5] * 3, 0.2)
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
