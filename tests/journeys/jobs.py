"""Real jobs for tests: commands as a user types them, and their output. No process is left behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.events import commits, training_together, workers
from tests.started import BIN, Started
from torchft_x import env
from torchft_x.observe.events import EventTail

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


class Job(Started):
    """A running command of a job, with the job's events."""

    def __init__(self, command: Sequence[str], log: Path, run_dir: Path, **options: Any) -> None:
        super().__init__(command, log, run_dir, **options)
        self.run_dir = run_dir
        self.events = Events(run_dir)

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
def running(command: Sequence[str], log: Path, run_dir: Path, **options: Any) -> Iterator[Job]:
    """Start `command` with the options of `Started`, and kill its remaining processes at the end."""
    job = Job(command, log, run_dir, **options)
    try:
        yield job
    finally:
        job.close()


TRIAL = "benchmarks/trial/ddp.py"
"""Path of the trial script: scripts/train_ddp.py with --pace, --until and --dump-params."""


def torchx_ddp(run_dir: Path, *script_args: str, groups: int = 2, script: str = "scripts/train_ddp.py") -> list[str]:
    """Return the command that submits a job with `torchx run`."""
    command = [str(BIN / "torchx"), "run", "-s", "local_cwd", "./components.py:ddp", "--replicas", str(groups)]
    return [*command, "--run_dir", str(run_dir), "--script", script, "--", *script_args]


TOGETHER = ("--min_replicas", "2", "--env", "TORCHFT_QUORUM_TIMEOUT_SEC=200")
"""Options of a job of two groups in which neither trains alone: the job lasts until both are back, and no longer."""
