"""Sidecars as real processes, at a real lighthouse; the test itself speaks for the job's only group."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.started import TORCHFT_X, Started, ended
from tests.unit.rpc.support import reporting
from tests.util import wait_for
from torchft_x.launch.process import process_tree
from torchft_x.launch.supervisor.locate import connector
from torchft_x.launch.supervisor.requests import Stop
from torchft_x.launch.supervisor.sidecar import Sidecar, SidecarConfig
from torchft_x.observe.events import read_events
from torchft_x.rpc.supervisor_client import SupervisorClient

SLEEPER = "import os, time; print('up', os.getpid(), flush=True); time.sleep(1000)"
LAUNCHER = """if True:
    import os, subprocess, sys
    subprocess.Popen([*sys.argv[1:5], "--launcher_pid", str(os.getpid()), *sys.argv[5:]]).wait()
"""


class Job:
    """A lighthouse that waits for group 0, and sidecars beside it."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self._folder = folder
        self._made: list[Started] = []
        self.group: SupervisorClient | None = None
        self.lighthouse: Started | None = None

    def start_lighthouse(self) -> None:
        words = ["lighthouse", "--bind", "127.0.0.1:0", "--min_replicas", "1", "--job_groups", "0"]
        self.lighthouse = self._start("lighthouse", *TORCHFT_X, *words, "--run_dir", str(self.run_dir))
        at = self.run_dir / "lighthouse"
        self.lighthouse.wait_for(lambda: at.exists() and at.read_text().endswith("\n"), 20.0, "its address")
        token = (self.run_dir / "token").read_text().strip()
        self.group = reporting(at.read_text().strip(), "0", token)
        self.group.started(0, "attempt")

    def finish(self, code: int = 0) -> None:
        """The group is done, and so is the job."""
        self.group.done(code, "it gave up" if code else "")

    def accompany(self, *command: str, launched: bool = False) -> Started:
        words = [*TORCHFT_X, "accompany", "--name", "eval", "--run_dir", str(self.run_dir), "--max_restarts", "10"]
        before = [sys.executable, "-c", LAUNCHER] if launched else []
        return self._start("eval", *before, *words, "--", *command)

    def said(self, name: str = "eval") -> str:
        return (self._folder / f"{name}.log").read_text()

    def program(self) -> int:
        """The pid that the program has told."""
        wait_for(lambda: "up " in self.said(), 20.0, "the program")
        return int(self.said().rpartition("up ")[2].split()[0])

    def close(self) -> None:
        if self.group is not None:
            self.group.close(flush=0.1)
        for process in self._made:
            process.close()

    def _start(self, name: str, *command: str) -> Started:
        self._made.append(Started(command, self._folder / f"{name}.log", TORCHFT_X_ADVERTISE_HOST="127.0.0.1"))
        return self._made[-1]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    made.start_lighthouse()
    yield made
    made.close()


def test_it_ends_with_the_job_and_with_0_whatever_the_verdict(job: Job) -> None:
    sidecar = job.accompany(sys.executable, "-c", SLEEPER)
    program = job.program()
    job.finish(code=1)
    assert job.lighthouse is not None
    assert job.lighthouse.wait() == 1
    assert sidecar.wait() == 0
    assert not process_tree.is_alive(program)
    assert "sidecar eval stops: The job failed" in job.said()
    assert "trying again" not in job.said()  # the lighthouse went as it should


def test_any_program_with_its_arguments_and_its_environment(job: Job) -> None:
    names = ["TORCHFT_LIGHTHOUSE", "TORCHFT_X_RUN_DIR", "TORCHFT_X_TOKEN_FILE", "TORCHFT_X_ADVERTISE_HOST"]
    names += ["REPLICA_GROUP_ID"]
    show = f"import json, os, torchft_x; print(json.dumps([os.environ.get(n) for n in {names}]))"
    shell = 'echo "out: $1"; echo err >&2; exec "$2" -c "$3"'
    assert job.accompany("sh", "-c", shell, "sh", "a $b -- c", sys.executable, show).wait() == 0
    address = (job.run_dir / "lighthouse").read_text().strip()
    expected = [address, str(job.run_dir), str(job.run_dir / "token"), "127.0.0.1", None]
    assert {"out: a $b -- c", json.dumps(expected), "err"} <= set(job.said().splitlines())
    (log,) = (job.run_dir / "logs").iterdir()
    assert log.name == "sidecar-eval-attempt-0.log"
    events = [e for e in read_events(job.run_dir) if e["role"] == "sidecar"]
    assert [(e["event"], e["sidecar"]) for e in events] == [("start", "eval"), ("exit", "eval")]
    assert job.accompany("no-such-program").wait() == 2
    assert "The program no-such-program" in job.said()


def test_when_it_gives_up_the_job_goes_on_and_says_so(job: Job) -> None:
    sidecar = job.accompany(sys.executable, "-c", "raise ValueError('no such data')")
    assert sidecar.wait() == 1
    why = "3 quick exits in a row, the last: the program exited with code 1: ValueError: no such data"
    assert f"sidecar eval stops: {why}" in job.said()
    wait_for(lambda: f"The sidecar eval gave up on {os.uname().nodename}: {why}" in job.said("lighthouse"))
    job.finish()
    assert job.lighthouse is not None
    assert job.lighthouse.wait() == 0


def test_when_the_launcher_is_gone_nothing_is_left(job: Job) -> None:
    launcher = job.accompany(sys.executable, "-c", SLEEPER, launched=True)
    program = job.program()
    below = launcher.descendants()
    assert program in below
    launcher.kill()
    ended(*below)


def test_a_lighthouse_that_stays_away_is_the_end_of_the_job() -> None:
    class Away:
        seconds = 0.0

        def away(self) -> float:
            return self.seconds

    config = SidecarConfig(sidecar="eval", command=("x",), patience=600.0)
    sidecar, ends = Sidecar(config, connector("", sidecar="eval")), []
    sidecar._reports = reports = Away()  # type: ignore[assignment]
    for reports.seconds in (0.0, 599.0, 601.0):
        sidecar._on_turn(None, None, None)  # type: ignore[arg-type]
        ends.append(sidecar._stops.first)
    assert ends == [None, None, Stop(0, "the lighthouse has been away for 600 s: the job counts as over")]
