"""torchft-nightly's own Manager trains under our lighthouse: two groups, one killed with SIGKILL and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extended.rpc.test_peer import HOW
from tests.util import clock, scaled, wait_for
from torchft_x import env
from torchft_x.comm.store.create import host_store

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("peer_train.py")


class Trainer:
    """One life of a group, its committed steps read from its output."""

    def __init__(self, python: str, group: str, lighthouse: str, out: Path, end: Path) -> None:
        self.store, address = host_store("127.0.0.1")
        self.out = out
        environ = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse, "MASTER_ADDR": "127.0.0.1"}
        environ["MASTER_PORT"] = str(address.port)
        environ.pop("PYTHONPATH", None)  # the peer's environment knows nothing of ours
        with out.open("wb") as f:
            self.process = subprocess.Popen(
                [python, str(SCRIPT), group, str(end)], env=environ, stdout=f, stderr=subprocess.STDOUT, cwd=out.parent
            )

    def commits(self) -> list[dict]:
        lines = self.out.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"step"') and line.endswith("}")]

    def in_pairs(self) -> int:
        """Steps committed together with the other group."""
        return sum(c["groups"] == 2 for c in self.commits())


def test_the_peers_manager_trains_through_a_kill_under_our_lighthouse(tmp_path: Path) -> None:
    python = env.read(env.PEER_PYTHON)
    if python is None:
        pytest.skip(HOW)
    address_file = tmp_path / "lighthouse"
    command = [sys.executable, "-m", "torchft_x", "lighthouse", "--min_replicas", "1", "--bind", "127.0.0.1:0"]
    command += ["--join_timeout_ms", "1000", "--heartbeat_timeout_ms", str(int(clock(1000)))]
    command += ["--address_file", str(address_file)]
    started = [subprocess.Popen(command, stderr=(tmp_path / "lighthouse.log").open("wb"))]
    try:
        wait_for(address_file.exists, 20, "the lighthouse's address")
        address, end = address_file.read_text().strip(), tmp_path / "end"

        def start(group: str, life: int) -> Trainer:
            trainer = Trainer(python, group, address, tmp_path / f"g{group}-{life}.log", end)
            started.append(trainer.process)
            return trainer

        survivor, victim = start("0", 0), start("1", 0)
        wait_for(lambda: survivor.in_pairs() > 20 and victim.in_pairs() > 20, 90, "both train together")
        victim.process.kill()
        victim.process.wait()
        alone = len(survivor.commits())
        wait_for(lambda: len(survivor.commits()) > alone + 5, 60, "the survivor goes on")
        back = start("1", 1)
        wait_for(lambda: back.in_pairs() > 20, 90, "the group is back and trains with the other")
        end.touch()
        for trainer in (survivor, back):
            trainer.process.wait(scaled(60))
        digests: dict[int, set[str]] = {}
        for trainer in (survivor, victim, back):
            for commit in trainer.commits():
                digests.setdefault(commit["step"], set()).add(commit["digest"])
        assert all(len(d) == 1 for d in digests.values()), "the groups' parameters differ"
        assert sorted(digests) == list(range(1, len(digests) + 1)), "a step number is missing"
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
