"""A real process that is stopped: the silence is noticed, and it may return."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.unit.rpc.support import Asking, Watched, asking, group, known, lighthouse, members
from tests.util import clock, scaled, wait_for
from torchft_x.core.types import JoinReason, State

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def member(*args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.process.rpc.member", *args],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def test_a_stopped_member_is_over_after_the_heartbeat_timeout_and_may_return() -> None:
    with lighthouse(1, heartbeat_timeout_ms=int(clock(1000))) as lh, group("a:1", lh.address()) as a:
        watched = Watched()
        a.watch(watched.on_revoked, watched.on_end)
        with member("b:1", lh.address()) as b:
            wait_for(lambda: "b:1" in known(lh), 20.0, "the other to come")
            quorum = Asking(a, timeout=scaled(30.0)).result().quorum
            assert len(quorum.members) == 2
            os.kill(b.pid, signal.SIGSTOP)
            wait_for(lambda: watched.overs, 20.0, "the silence to be noticed")
            assert "refuse" not in watched.overs[0][2]
            state = State(1, quorum.id)
            assert members(Asking(a, state=state, reason=JoinReason.FAILED, timeout=scaled(30.0)).result()) == ["a:1"]
            os.kill(b.pid, signal.SIGCONT)
            wait_for(lambda: "b:1" in asking(lh), 20.0, "its return")
