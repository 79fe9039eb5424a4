"""A script for torchft, started as it is, trains through a kill: real processes, torchft's own way to launch them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.comm.store.create import host_store
from torchft_x.compat.__main__ import PATH

pytestmark = [pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("script.py")
ROOT = Path(__file__).parents[3]


class Life:
    """One life of a group."""

    def __init__(self, group: int, lighthouse: str, out: Path, *words: str) -> None:
        self._store, address = host_store("127.0.0.1")
        self.out = out
        environ = {
            **env.everything(), "TORCHFT_LIGHTHOUSE": lighthouse, "REPLICA_GROUP_ID": str(group),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(address.port), "RANK": "0", "WORLD_SIZE": "1",
            "PYTHONPATH": f"{PATH}{os.pathsep}{ROOT}",
        }  # fmt: skip
        with out.open("wb") as f:
            self.process = subprocess.Popen([sys.executable, str(SCRIPT), *words], env=environ, stdout=f, stderr=f)

    def steps(self) -> dict[int, tuple[int, str]]:
        """By step: how many groups took part, and the digest of the weights after it."""
        lines = [line.split() for line in self.out.read_text(errors="replace").splitlines()]
        return {int(w[1]): (int(w[2]), w[3]) for w in lines if len(w) == 4 and w[0] == "step"}

    def pairs(self) -> int:
        return sum(groups == 2 for groups, _ in self.steps().values())


@pytest.mark.parametrize("algorithm", ["ddp", "diloco"])
def test_a_script_for_torchft_trains_through_a_kill(tmp_path: Path, algorithm: str) -> None:
    address_file = tmp_path / "lighthouse"
    command = [sys.executable, "-m", "torchft_x.compat", "torchft_lighthouse", "--min_replicas", "1"]
    command += ["--bind", "127.0.0.1:0", "--join_timeout_ms", "2000", "--address_file", str(address_file)]
    started = [subprocess.Popen(command, stderr=(tmp_path / "lighthouse.log").open("wb"))]
    try:
        wait_for(address_file.exists, 20, "the lighthouse's address")
        address = address_file.read_text().strip()
        stop = tmp_path / "stop"

        def start(group: int, life: int) -> Life:
            made = Life(group, address, tmp_path / f"{group}-{life}.log", algorithm, str(stop))
            started.append(made.process)
            return made

        stays, dies = start(0, 0), start(1, 0)
        wait_for(lambda: stays.pairs() > 5 and dies.pairs() > 5, 60, "both to train together")
        dies.process.send_signal(signal.SIGKILL)
        dies.process.wait()
        alone = max(stays.steps())
        wait_for(lambda: max(stays.steps()) > alone + 3, 30, "the survivor to go on")
        back = start(1, 1)
        wait_for(lambda: back.pairs() > 5, 60, "it to be back")
        last = max(stays.steps()) + (100 if algorithm == "ddp" else 20)  # not there yet
        (tmp_path / "new").write_text(str(last))
        (tmp_path / "new").rename(stop)
        lives = [stays, dies, back]
        for life in (stays, back):
            life.process.wait(scaled(90))
        assert [life.process.returncode for life in (stays, back)] == [0, 0], back.out.read_text()[-2000:]
        digests: dict[int, set[str]] = {}
        for life in lives:
            for step, (_, digest) in life.steps().items():
                digests.setdefault(step, set()).add(digest)
        assert [step for step, found in digests.items() if len(found) > 1] == []
        assert sorted(digests) == list(range(1, last + 1))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
