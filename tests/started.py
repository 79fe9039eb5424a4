"""Processes that tests start. Each has a session of its own and its output in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.launch.process import process_tree
from torchft_x.observe.processes import job_processes

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
TORCHFT_X = (sys.executable, "-m", "torchft_x")


def environment(**variables: str) -> dict[str, str]:
    """Return the variables of a user's shell: none of ours but those for import time and scale, no cluster."""
    mine, ours = ("PYTHONPATH", "TORCHFT_LIGHTHOUSE", "KUBECONFIG", "DOCKER_HOST"), (env.WARM, env.TIME_SCALE)
    clean = {k: v for k, v in os.environ.items() if k not in mine and (k in ours or not k.startswith("TORCHFT_X_"))}
    return clean | variables


class Started:
    """A process that this test has started. With `run_dir`, the job's other processes end with it in `close`."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        run_dir: Path | None = None,
        *,
        cwd: Path = ROOT,
        environ: Mapping[str, str] | None = None,
        **variables: str,
    ) -> None:
        self.log = log
        self._run_dir = run_dir
        if environ is None:
            environ = environment(PATH=f"{BIN}:{os.environ.get('PATH', '')}", PYTHONPATH=str(ROOT))
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Wait as `wait_for` of tests.util does. Show the output if the process ends or the time is up."""
        try:
            wait_for(lambda: condition() or self.process.poll() is not None, seconds, what)
        except AssertionError as e:
            raise AssertionError(f"{e}; the output:\n{self.output()[-4000:]}") from None
        assert condition(), f"it ended ({self.process.returncode}) before {what}:\n{self.output()[-4000:]}"

    def wait(self, seconds: float = 20.0) -> int:
        """Wait for the end, and return the exit code."""
        try:
            return self.process.wait(scaled(seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {scaled(seconds):g} s:\n{self.output()[-4000:]}") from None

    def descendants(self) -> list[int]:
        return process_tree.descendants(self.process.pid)

    def kill(self) -> None:
        """Send SIGKILL, and reap the process."""
        self.process.kill()
        self.process.wait(scaled(10))

    def close(self) -> None:
        try:
            self.kill()
        finally:
            if self._run_dir is not None:
                process_tree.send(job_processes(self._run_dir), signal.SIGKILL)


def gone(run_dir: Path, seconds: float) -> None:
    """Wait until no process of the run is left."""
    wait_for(lambda: not job_processes(run_dir), seconds, f"the end of processes {job_processes(run_dir)}")


def ended(*pids: int) -> None:
    """Wait for the end of these processes."""
    wait_for(lambda: not any(process_tree.is_alive(pid) for pid in pids), 20, f"the end of {pids}")
