"""observe/processes: finding a run's processes by their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.util import wait_for
from torchft_x import env
from torchft_x.observe.processes import job_processes


def test_only_processes_started_with_the_run_directory_are_found(tmp_path: Path) -> None:
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, env={**os.environ, env.RUN_DIR: str(tmp_path)}
    ) as process:
        wait_for(lambda: job_processes(tmp_path) == [process.pid], what="the process to show its environment")
        assert job_processes(tmp_path / "other") == []
    assert job_processes(tmp_path) == []
