"""Groups as real processes, killed with SIGKILL: survivors go on, the returned group is bit-equal, no step is missing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.train.forked import Program
from tests.train.jobs import lighthouse
from tests.util import scaled, wait_for

ROOT = Path(__file__).parents[2]


class Group:
    """A group's processes over its lives; all write to one file."""

    def __init__(self, number: int, address: str, folder: Path, module: str = "tests.train.worker", *more: str) -> None:
        self.path = folder / f"group{number}.txt"
        self.path.touch()
        stop = str(folder / "stop")
        self._module = module
        self._args = [str(number), address, str(self.path), stop, *more]
        self._log = folder / f"group{number}.log"
        self.start()

    def start(self) -> None:
        self.process = Program(self._module, self._args, self._log, os.environ)

    def kill(self) -> float:
        """Returns when (monotonic seconds)."""
        now = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return now

    def lines(self, kind: str = "commit") -> list[tuple[int, str, float]]:
        """(step, digest, when) of whole lines."""
        found = []
        for line in self.path.read_text().split("\n")[:-1]:
            what, step, digest, when = line.split()
            if what == kind:
                found.append((int(step), digest, float(when)))
        return found

    def last_step(self) -> int:
        return max((step for step, _, _ in self.lines()), default=0)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [2, 3])
def test_kill_and_return(tmp_path: Path, count: int) -> None:
    kills = count
    rng = random.Random(count)
    waits = []
    silence = scaled(5.0)  # taken for death; nobody may wait for it
    with lighthouse(1, int(silence * 1000)) as address:
        groups = [Group(i, address, tmp_path) for i in range(count)]
        try:
            for _ in range(kills):
                goal = max(g.last_step() for g in groups) + 15
                wait_for(lambda: all(g.last_step() >= goal for g in groups), 60, "all groups to train together")  # noqa: B023
                time.sleep(rng.random() * 0.05)
                victim = rng.choice(groups)
                when = victim.kill()
                survivors = [g for g in groups if g is not victim]
                for g in survivors:
                    after = wait_for(
                        lambda: [t for _, _, t in g.lines() if t > when + 0.002],  # noqa: B023
                        30,
                        "a survivor's next commit",
                    )
                    waits.append(after[0] - when)
                victim.start()
            back = victim.last_step()
            wait_for(lambda: victim.last_step() > back + 10, 60, "the last one killed to be back")
            steps = max(g.last_step() for g in groups) + 50
            (tmp_path / "new").write_text(str(steps))
            (tmp_path / "new").rename(tmp_path / "stop")
            wait_for(lambda: all(g.process.poll() is not None for g in groups), 60, "the end of the run")
            assert [g.process.returncode for g in groups] == [0] * count
        finally:
            for g in groups:
                if g.process.poll() is None:
                    g.kill()
    by_step: dict[int, set[str]] = {}
    for g in groups:
        for step, digest, _ in g.lines():
            by_step.setdefault(step, set()).add(digest)
    assert sorted(by_step) == list(range(1, steps + 1))
    assert [s for s, digests in by_step.items() if len(digests) != 1] == []
    drops = sum(len(g.lines("drop")) for g in groups)
    print(
        f"{count} groups, {kills} kills: survivors' next commit after {[round(w, 3) for w in waits]} s, {drops} drops"
    )
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
            a.process.kill()
            a.process.wait()
