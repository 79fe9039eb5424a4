"""launch/clean: old run directories."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.launch.test_clean import (
    DAY,
    a_run,
)
from tests.util import wait_for
from torchft_x import env
from torchft_x.__main__ import main
from torchft_x.observe.processes import job_processes


def test_what_goes_on_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = a_run(tmp_path / "here", 9 * DAY)
    code = "import sys; sys.stdin.read()"
    environ = {**os.environ, env.RUN_DIR: str(here)}
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=environ) as process:
        wait_for(lambda: job_processes(here) == [process.pid], what="the process to show its environment")
        assert main(["clean", str(tmp_path), "--yes"]) == 0
    assert "stays: it goes on" in capsys.readouterr().out
    assert here.exists()
