"""A job of local_ft that goes on by itself: what TorchX's commands say of it from another shell, and its cancellation."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.events import commits, training_together, workers
from tests.journeys.jobs import SMALL, TRIAL, WARM, Events
from tests.started import ROOT, gone
from tests.unit.launch.lines import torchx
from tests.util import wait_for
from torchft_x import env
from torchft_x.__main__ import main
from torchft_x.launch.process import process_tree
from torchft_x.observe.processes import job_processes

pytestmark = pytest.mark.timeout(300)


def test_a_job_is_started_watched_and_cancelled_from_other_shells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    events = Events(run_dir)
    variables = {"PYTHONPATH": str(ROOT), env.STATE_HOME: str(tmp_path / "state"), **WARM}

    def say(*words: str) -> str:
        done = torchx(*words, ft=True, **variables)
        text = done.stdout + done.stderr
        assert done.returncode == 0, text
        assert "Traceback" not in text, text
        return text

    job = ["./components.py:ddp", "--run_dir", str(run_dir), "--script", TRIAL]
    try:
        out = say(
            *("run", "-s", "local_ft", "-cfg", "detach=True"),
            *(*job, "--", "--steps", "100000", "--pace", "0.05", *SMALL),
        )
        found = re.search(r"local_ft://torchx/\S+$", out, re.MULTILINE)
        assert found is not None, out
        handle = found[0]
        wait_for(lambda: training_together(events(), 2), 90, "two groups train together")

        one = next(w.pid for w in workers(events()) if w.group == "1")
        os.kill(one, signal.SIGKILL)
        wait_for(lambda: any(e["event"] == "exit" and e.get("group") == "1" for e in events()), 30, "its exit")
        before = len(commits(events()))
        wait_for(
            lambda: len(commits(events())) > before + 20 and training_together(events()[-40:], 2), 90, "both groups"
        )

        assert re.search(rf"{handle}\s.*RUNNING", say("list", "-s", "local_ft"))
        status = say("status", handle)
        assert re.search(r"State: RUNNING", status), status
        assert "restarts: 1, last: worker 0 killed by SIGKILL" in status, status
        assert main(["status", str(run_dir)]) == 0
        assert re.search(r"group +0|^ *0 ", capsys.readouterr().out, re.MULTILINE)

        say("cancel", handle)
        gone(run_dir, 30)
        assert "State: CANCELLED" in say("status", handle)
        assert re.search(r"trainer/0\S* .*step +\d+ \| loss", say("log", handle))
    finally:
        process_tree.send(job_processes(run_dir), signal.SIGKILL)
