"""Sidecars as real processes, at a real lighthouse; the test itself speaks for the job's only group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.rpc.support import reporting
from tests.util import scaled, wait_for
from torchft_x.env import TIME_SCALE
from torchft_x.launch.process import process_tree
from torchft_x.launch.supervisor.locate import connector
from torchft_x.launch.supervisor.requests import Stop
from torchft_x.launch.supervisor.sidecar import Sidecar, SidecarConfig
from torchft_x.observe.events import read_events
from torchft_x.rpc.supervisor_client import SupervisorClient

ROOT = Path(__file__).parents[4]
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
        self._made: list[subprocess.Popen[bytes]] = []
        self.group: SupervisorClient | None = None
        self.lighthouse: subprocess.Popen[bytes] | None = None

    def start_lighthouse(self) -> None:
        words = ["lighthouse", "--bind", "127.0.0.1:0", "--min_replicas", "1", "--job_groups", "0"]
        self.lighthouse = self._start("lighthouse", [*words, "--run_dir", str(self.run_dir)])
        address = wait_for(self._address, 20.0, "the lighthouse")
        token = (self.run_dir / "token").read_text().strip()
        self.group = reporting(address, "0", token)
        self.group.started(0, "attempt")

    def finish(self, code: int = 0) -> None:
        """The group is done, and so is the job."""
        self.group.done(code, "it gave up" if code else "")

    def accompany(self, *command: str, launched: bool = False) -> subprocess.Popen[bytes]:
        words = ["accompany", "--name", "eval", "--run_dir", str(self.run_dir), "--max_restarts", "10"]
        return self._start("eval", [*words, "--", *command], launched=launched)

    def said(self, name: str = "eval") -> str:
        """On stdout and stderr."""
        return "".join((self._folder / f"{name}.{which}").read_text() for which in ("out", "err"))

    def program(self) -> int:
        """The pid that the program has told."""
        wait_for(lambda: "up " in self.said(), 20.0, "the program")
        return int(self.said().rpartition("up ")[2].split()[0])

    def close(self) -> None:
        if self.group is not None:
            self.group.close(flush=0.1)
        for process in self._made:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _address(self) -> str:
        path = self.run_dir / "lighthouse"
        return path.read_text().strip() if path.exists() else ""

    def _start(self, name: str, words: list[str], *, launched: bool = False) -> subprocess.Popen[bytes]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHFT", "TORCHX")) or k == TIME_SCALE}
        before = [sys.executable, "-c", LAUNCHER] if launched else []
        with open(self._folder / f"{name}.out", "wb") as out, open(self._folder / f"{name}.err", "wb") as err:
            process = subprocess.Popen(
                [*before, sys.executable, "-m", "torchft_x", *words],
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=inherited | {"TORCHFT_X_ADVERTISE_HOST": "127.0.0.1"},
            )
        self._made.append(process)
        return process


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    made.start_lighthouse()
    yield made
    made.close()


def ends(process: subprocess.Popen[bytes]) -> int:
    return process.wait(scaled(20.0))


def gone(*pids: int) -> Callable[[], bool]:
    return lambda: not any(process_tree.is_alive(pid) for pid in pids)


def test_it_ends_with_the_job_and_with_0_whatever_the_verdict(job: Job) -> None:
    sidecar = job.accompany(sys.executable, "-c", SLEEPER)
    program = job.program()
    job.finish(code=1)
    assert job.lighthouse is not None
    assert ends(job.lighthouse) == 1
    assert ends(sidecar) == 0
    assert gone(program)()
    assert "sidecar eval stops: The job failed" in job.said()
    assert "trying again" not in job.said()  # the lighthouse went as it should


def test_any_program_with_its_arguments_and_its_environment(job: Job) -> None:
    names = ["TORCHFT_LIGHTHOUSE", "TORCHFT_X_RUN_DIR", "TORCHFT_X_TOKEN_FILE", "TORCHFT_X_ADVERTISE_HOST"]
    names += ["REPLICA_GROUP_ID"]
    show = f"import json, os, torchft_x; print(json.dumps([os.environ.get(n) for n in {names}]))"
    shell = 'echo "out: $1"; echo err >&2; exec "$2" -c "$3"'
    assert ends(job.accompany("sh", "-c", shell, "sh", "a $b -- c", sys.executable, show)) == 0
    address = (job.run_dir / "lighthouse").read_text().strip()
    expected = [address, str(job.run_dir), str(job.run_dir / "token"), "127.0.0.1", None]
    first, second, *_ = job.said().splitlines()
    assert (first, json.loads(second)) == ("out: a $b -- c", expected)
    assert "err\n" in job.said()
    (log,) = (job.run_dir / "logs").iterdir()
    assert log.name == "sidecar-eval-attempt-0.log"
    events = [e for e in read_events(job.run_dir) if e["role"] == "sidecar"]
    assert [(e["event"], e["sidecar"]) for e in events] == [("start", "eval"), ("exit", "eval")]
    assert ends(job.accompany("no-such-program")) == 2
    assert "The program no-such-program" in job.said()


def test_when_it_gives_up_the_job_goes_on_and_says_so(job: Job) -> None:
    sidecar = job.accompany(sys.executable, "-c", "raise ValueError('no such data')")
    assert ends(sidecar) == 1
    why = "3 quick exits in a row, the last: the program exited with code 1: ValueError: no such data"
    assert f"sidecar eval stops: {why}" in job.said()
    wait_for(lambda: f"The sidecar eval gave up on {os.uname().nodename}: {why}" in job.said("lighthouse"))
    job.finish()
    assert job.lighthouse is not None
    assert ends(job.lighthouse) == 0


def test_when_the_launcher_is_gone_nothing_is_left(job: Job) -> None:
    launcher = job.accompany(sys.executable, "-c", SLEEPER, launched=True)
    program = job.program()
    below = process_tree.descendants(launcher.pid)
    assert program in below
    launcher.kill()
    launcher.wait()
    wait_for(gone(*below), 20.0, "the end of everything")


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
