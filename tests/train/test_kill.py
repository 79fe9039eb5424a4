"""Groups as real processes, killed with SIGKILL: survivors go on, the returned group is bit-equal, no step is missing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.jobs import Group, killed_and_back, lighthouse
from tests.util import scaled, wait_for

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [2, 3])
def test_kill_and_return(tmp_path: Path, count: int) -> None:
    silence = scaled(5.0)  # taken for death; nobody may wait for it
    with lighthouse(1, int(silence * 1000)) as address:
        groups = [Group(i, address, tmp_path) for i in range(count)]
        waits, steps, by_step = killed_and_back(
            groups, tmp_path, random.Random(count), kills=count, together=15, within=0.05, more=50
        )
    assert sorted(by_step) == list(range(1, steps + 1))
    assert [s for s, digests in by_step.items() if len(digests) != 1] == []
    drops = sum(len(g.lines("drop")) for g in groups)
    print(f"{count} groups and kills: survivors' next commit after {[round(w, 3) for w in waits]} s, {drops} drops")
    assert max(waits) < silence


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_newcomer_that_can_never_heal_is_given_up_by_its_supervisor_and_the_others_go_on(tmp_path: Path) -> None:
    with lighthouse(1) as address:
        a = Group(0, address, tmp_path, "tests.train.hidden_worker")
        try:
            wait_for(lambda: a.last_step() > 3, 60, "group 0 to train")
            script = [
                str(ROOT / "tests/train/hidden_worker.py"),
                "1",
                address,
                str(tmp_path / "b.txt"),
                str(tmp_path / "stop"),
            ]
            command = [sys.executable, "-m", "torchft_x", "supervise", "--group", "1", "--groups", "2"]
            command += ["--max_restarts", "1", "--run_dir", str(tmp_path / "run"), "--", *script]
            env = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHFT_LIGHTHOUSE": address, "TORCH_CPP_LOG_LEVEL": "FATAL"}
            env["TORCHFT_X_ADVERTISE_HOST"] = "127.0.0.1"
            b = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=scaled(120))
            said = b.stdout + b.stderr
            assert b.returncode == 1, said
            assert "restart 1 of 1" in said
            assert said.count("TransferError: ") >= 2, said
            assert "heals in a row have failed within" in said
            there = a.last_step()
            wait_for(lambda: a.last_step() > there + 20, 30, "group 0 to go on")
            steps = [step for step, _, _ in a.lines()]
            assert steps == list(range(1, max(steps) + 1)), "a step of group 0 is missing"
        finally:
            a.kill()
