"""The lighthouse dies while groups train, as real processes (R1, R8, R16): nobody ends, nobody waits, ids go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.train.jobs import ROOT, Group
from tests.util import wait_for
from torchft_x.observe.events import read_events

BEYOND = 2.5
"""Seconds after which nobody has a grant left from the lighthouse that died (they are worth about one)."""


class Lighthouse:
    """A lighthouse as a process, over its lives, always at the same address."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._log = (folder / "lighthouse.log").open("ab")
        self.start()

    def start(self) -> None:
        args = ["--min_replicas", "2", "--join_timeout_ms", "5000", "--bind", f"127.0.0.1:{self.port}"]
        command = [sys.executable, "-m", "torchft_x", "lighthouse", *args]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def go_on(groups: list[Group], when: float) -> None:
    """Wait until all have committed a step after that moment."""
    wait_for(lambda: all(t > when for g in groups for _, _, t in g.lines()[-1:]), 60, "steps without a lighthouse")


def commits(folder: Path) -> list[dict[str, Any]]:
    return [e for e in read_events(folder) if e["event"] == "commit"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_lighthouse_that_comes_back_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFT_X_RUN_DIR", str(tmp_path))
    lighthouse = Lighthouse(tmp_path)
    groups = [Group(i, lighthouse.address, tmp_path) for i in range(2)]
    newcomer: Group | None = None
    try:
        wait_for(lambda: all(g.last_step() > 100 for g in groups), 60, "the groups to train")
        for _ in range(2):
            killed = time.monotonic()
            lighthouse.kill()
            go_on(groups, killed + BEYOND)  # while there is none
            lighthouse.start()
            goal = max(g.last_step() for g in groups) + 100
            wait_for(lambda: all(g.last_step() > goal for g in groups), 60, "the groups to go on")  # noqa: B023
        # It knows them again: a third group is let in, and nobody is rolled back.
        newcomer = Group(2, lighthouse.address, tmp_path)
        wait_for(lambda: newcomer.last_step() > goal, 60, "a newcomer to train with them")
        (tmp_path / "new").write_text(str(newcomer.last_step() + 200))
        (tmp_path / "new").rename(tmp_path / "stop")
        everybody = [*groups, newcomer]
        wait_for(lambda: all(g.process.poll() is not None for g in everybody), 60, "the end of the run")
        assert [g.process.returncode for g in everybody] == [0, 0, 0]
    finally:
        lighthouse.kill()
        for g in (*groups, *([newcomer] if newcomer else [])):
            if g.process.poll() is None:
                g.kill()
    assert [g.lines("drop") for g in groups] == [[], []]
    for g in ("group_0", "group_1"):
        ids = [e["quorum"] for e in commits(tmp_path) if e["group"] == g]
        assert ids == sorted(ids)
        assert ids[-1] > ids[0]
    by_step: dict[int, set[str]] = {}
    for g in everybody:
        for step, digest, _ in g.lines():
            by_step.setdefault(step, set()).add(digest)
    assert sorted(by_step) == list(range(1, max(by_step) + 1))
    assert all(len(digests) == 1 for digests in by_step.values())
