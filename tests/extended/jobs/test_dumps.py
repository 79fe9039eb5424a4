"""What the supervisors collect when a real group hangs or dies, and what `torchft_x dumps` makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journeys.jobs import ROOT, TOGETHER, Job, running, torchx_ddp
from tests.util import scaled

pytestmark = [pytest.mark.timeout(180)]


def command(run_dir: Path, how: str) -> list[str]:
    words = torchx_ddp(run_dir, how, script="tests/extended/jobs/hanging.py")
    at = words.index("--replicas")
    return [*words[:at], *TOGETHER, *words[at:]]


def finding(job: Job) -> str:
    """The first one, when some supervisor has said it."""
    job.wait_for(lambda: any(e["event"] == "dump" for e in job.events()), 90, "something is collected")
    return str(next(e for e in job.events() if e["event"] == "dump")["reason"])


def dumps(run_dir: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torchft_x", "dumps", str(run_dir), "1"],
        cwd=ROOT, capture_output=True, text=True, timeout=scaled(30),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_group_that_sleeps_is_named_with_the_function_it_sleeps_in(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(command(run_dir, "nap"), tmp_path / "log", run_dir) as job:
        said = finding(job)
        job.wait_for(lambda: said in job.output(), 20, "the supervisor's line")
    assert said.startswith("Group 1 stalls: no step for ")  # the others have gone on without it
    assert "rank 0 is in telltale_nap (hanging.py:" in said
    assert "telltale_nap" in dumps(run_dir)


def test_a_worker_that_fails_leaves_its_error_and_last_lines(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(command(run_dir, "boom"), tmp_path / "log", run_dir) as job:
        said = finding(job)
    assert said == "Group 1 died: worker 0 exited with code 1; rank 0: ArithmeticError: telltale trouble."
    (folder,) = (run_dir / "dumps").iterdir()
    error = json.loads((folder / "1-0.error.json").read_text())
    assert "in boom" in error["message"]["extraInfo"]["py_callstack"]
    assert "my last line" in (folder / "1-0.log.txt").read_text()
    assert json.loads((folder / "1-0.status.json").read_text())["step"] > 10  # of the dead one, from its memory
    assert json.loads((folder / "0-0.status.json").read_text())["rank"] == 0  # the other group's part
    assert "my last line" in dumps(run_dir)
