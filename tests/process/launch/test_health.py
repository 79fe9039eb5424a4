"""A real job on this machine whose health command fails after a death: that group stays down, the other one finishes."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.events import commits
from tests.journeys.jobs import running, torchx_ddp
from tests.process.programs import python
from tests.process.test_one_job import SCRIPT

pytestmark = [pytest.mark.timeout(300)]


def test_a_group_whose_host_is_bad_stays_down_and_the_sentence_is_everywhere(tmp_path: Path) -> None:
    run_dir, script, enough, code = (tmp_path / name for name in ("run", "script.py", "enough", "code"))
    script.write_text(SCRIPT)
    code.write_text("0")
    command = torchx_ddp(run_dir, str(enough), script=str(script))
    command[command.index("--") : command.index("--")] = ["--health", f"echo no GPU 3; exit $(cat {code})"]
    with running(command, tmp_path / "log", run_dir) as job:
        job.wait_until_training(2)
        code.write_text("3")
        os.kill(job.worker("1"), signal.SIGKILL)
        job.wait_for(lambda: commits(job.events())[-1]["participants"] == 1, 60, "group 0 to go on alone")
        job.wait_for(lambda: any(e["event"] == "error" for e in job.events()), 60, "group 1 to be given up")
        sentence = f"the health command failed (exit code 3) on {socket.gethostname()}: no GPU 3"
        assert sentence in python("-m", "torchft_x", "status", run_dir, "--once").stdout
        enough.touch()
        assert job.wait(60) == 1, job.output()
        assert f"1 of 2 groups finished, but group 1 gave up on {socket.gethostname()}: {sentence}." in job.output()
    assert f"group 1: {sentence}" in python("-m", "torchft_x", "report", run_dir).stdout
