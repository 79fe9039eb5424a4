"""Real jobs for tests: commands as a user types them, and their output. No process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.events import commits, training_together, workers
from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.observe.events import EventTail
from torchft_x.observe.processes import job_processes

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
WARM = {env.WARM: "1"}
"""Variables of a job with the default restarts: workers are forked from a process that has imported their modules."""
SMALL = ("--width", "32", "--layers", "1", "--heads", "2", "--batch-size", "2", "--seq-len", "32", "--data-mb", "0.2")


class Events:
    """All events of a run so far, in order of time. Each line is read once, as waits poll often."""

    def __init__(self, run_dir: Path) -> None:
        self._tail = EventTail(run_dir)
        self._read: list[dict] = []  # events read, in order of time

    def __call__(self) -> list[dict]:
        if new := self._tail.new():
            self._read = sorted([*self._read, *new], key=lambda e: float(e["t"]))
        return self._read


class Job:
    """A running command, with its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, run_dir: Path) -> None:
        self.process = process
        self.log = log
        self.run_dir = run_dir
        self.events = Events(run_dir)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Wait as `wait_for` of tests.util does. Show the output if the job ends or the time is up."""
        try:
            wait_for(lambda: condition() or self.process.poll() is not None, seconds, what)
        except AssertionError as e:
            raise AssertionError(f"{e}; the job's output:\n{self.output()[-4000:]}") from None
        assert condition(), f"the job ended ({self.process.returncode}) before {what}:\n{self.output()[-4000:]}"

    def wait(self, seconds: float) -> int:
        """Wait for the end of the job, and return its exit code."""
        try:
            return self.process.wait(scaled(seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job still runs after {scaled(seconds):g} s:\n{self.output()[-4000:]}") from None

    def wait_until_training(self, groups: int, seconds: float = 60.0) -> None:
        self.wait_for(
            lambda: training_together(self.events(), groups) and len(commits(self.events())) > 10,
            seconds,
            f"{groups} groups train together",
        )

    def worker(self, group: str) -> int:
        """Return the process id of the group's newest worker."""
        return next(w.pid for w in workers(self.events()) if w.group == group)


@contextmanager
def running(command: list[str], log: Path, run_dir: Path, *, cwd: Path = ROOT, **variables: str) -> Iterator[Job]:
    """Start `command` in `cwd`, and kill its remaining processes at the end."""
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ.get('PATH', '')}", "PYTHONPATH": str(ROOT), **variables}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Job(process, log, run_dir)
    finally:
        for pid in [*([process.pid] if process.poll() is None else []), *job_processes(run_dir)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait(scaled(10))


TRIAL = "benchmarks/trial/ddp.py"
"""Path of the trial script: scripts/train_ddp.py with --pace, --until and --dump-params."""


def torchx_ddp(run_dir: Path, *script_args: str, groups: int = 2, script: str = "scripts/train_ddp.py") -> list[str]:
    """Return the command that submits a job with `torchx run`."""
    command = [str(BIN / "torchx"), "run", "-s", "local_cwd", "./components.py:ddp", "--replicas", str(groups)]
    return [*command, "--run_dir", str(run_dir), "--script", script, "--", *script_args]


TOGETHER = ("--min_replicas", "2", "--env", "TORCHFT_QUORUM_TIMEOUT_SEC=200")
"""Options of a job of two groups in which neither trains alone: the job lasts until both are back, and no longer."""


def gone(run_dir: Path, seconds: float) -> None:
    """Wait until no process of the run is left."""
    wait_for(lambda: not job_processes(run_dir), seconds, f"the end of processes {job_processes(run_dir)}")
