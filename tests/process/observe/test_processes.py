"""observe/processes: finding a run's processes by their environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.util import wait_for
from torchft_x import env
from torchft_x.observe.processes import job_processes, lighthouse_process, orphans


def test_only_processes_started_with_the_run_directory_are_found(tmp_path: Path) -> None:
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, env={**os.environ, env.RUN_DIR: str(tmp_path)}
    ) as process:
        wait_for(lambda: job_processes(tmp_path) == [process.pid], what="the process to show its environment")
        assert job_processes(tmp_path / "other") == []
    assert job_processes(tmp_path) == []


def test_the_lighthouse_is_the_process_that_serves(tmp_path: Path) -> None:
    environ = {**os.environ, env.RUN_DIR: str(tmp_path)}
    code = "import sys; sys.stdin.read()"
    assert lighthouse_process(tmp_path) is None
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=environ) as other:
        wait_for(lambda: job_processes(tmp_path) == [other.pid], what="the process to show its environment")
        assert lighthouse_process(tmp_path) is None
        command = [sys.executable, "-c", code, "torchft_x.rpc.lighthouse.main"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environ) as server:
            wait_for(lambda: lighthouse_process(tmp_path) == server.pid, what="the server to be seen")


def started(*code: str, **variables: str) -> tuple[subprocess.Popen[str], int]:
    """Start a process below another one. Returns that one and the process's pid."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TORCHFT_X_")}
    above = (
        "import os, subprocess, sys; "
        "words = [w.replace('@launcher@', str(os.getpid())) for w in sys.argv[1:]]; "
        "p = subprocess.Popen(words); print(p.pid, flush=True); sys.stdin.read()"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", above, sys.executable, "-c", *code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean | variables,
    )
    return launcher, int(launcher.stdout.readline())


def end(launcher: subprocess.Popen[str], pid: int) -> None:
    for number in (pid, launcher.pid):
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            pass
    launcher.communicate()


SLEEP = "import time; time.sleep(1000)"


@pytest.mark.parametrize(
    ("code", "variables"),
    [((SLEEP, "--launcher_pid", "@launcher@"), {}), ((f"{SLEEP}  # torchft_x",), {env.ATTEMPT: "{}"})],
    ids=["of a launcher", "worker of a supervisor"],
)
def test_a_process_whose_parent_is_gone(tmp_path: Path, code: tuple[str, ...], variables: dict[str, str]) -> None:
    launcher, pid = started(*code, **variables, **{env.RUN_DIR: str(tmp_path)})
    try:
        wait_for(lambda: pid in job_processes(tmp_path), what="the process to show its environment")
        assert pid not in [o.pid for o in orphans()]
        launcher.kill()
        launcher.wait()
        (found,) = wait_for(lambda: [o for o in orphans() if o.pid == pid], what="the orphan")
        assert found.run_dir == str(tmp_path)
    finally:
        end(launcher, pid)
