"""`torchx run ./components.py:hsdp` with FSDP2 in each group, kill -9 of any of its processes, and an independent reference."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from benchmarks.evidence.hsdp_reference import NOISE
from benchmarks.evidence.kill_test import ENDLESS
from tests.events import commits, training_together
from tests.journeys.jobs import SMALL, WARM, running
from tests.journeys.test_hsdp import hsdp
from tests.journeys.test_kills import script

pytestmark = [pytest.mark.timeout(300)]


def test_compiled_blocks_through_a_kill(tmp_path: Path) -> None:
    """FSDP2 and torch.compile: a group of two loses a rank, compiles anew, and everybody's losses are those of one process
    that compiles nothing."""
    args = ("--component", "hsdp", "--workers", "2", "--kills", "1", "--what", "other", "--reference", "--keep")
    more = (*SMALL, "--pace", "0.06", "--compile", "aot_eager")
    done = script("kill_test", *args, "--dir", tmp_path / "run", "--", *more, **WARM)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["kills"], result["findings"]) == (1, [])
    same = result["reference"]
    assert same["steps"] > 25
    assert max(same["loss_error"], same["value_error"]) < NOISE
    slower = ("--", "--steps", str(ENDLESS), "--lr", "0.002", *SMALL)
    done = script("hsdp_reference", tmp_path / "run/dumps", *slower)
    other = json.loads(done.stdout)
    assert done.returncode == 1  # the comparison finds another training
    assert max(other["loss_error"], other["value_error"]) > NOISE


def test_a_pipeline_of_two_stages_through_a_kill(tmp_path: Path) -> None:
    """docs/examples/train_pipeline.py: a killed stage takes its group with it, and both come back."""
    run_dir = tmp_path / "run"
    command = hsdp(run_dir, 2, 2, "--steps", "100000", "--pace", "0.02")
    command[command.index("benchmarks/trial/hsdp.py")] = "docs/examples/train_pipeline.py"
    with running(command, tmp_path / "log", run_dir) as job:
        job.wait_until_training(2)
        killed = time.time()
        os.kill(job.worker("1"), signal.SIGKILL)

        def back() -> bool:
            later = [e for e in job.events() if float(e["t"]) > killed]
            healed = {e["group"] for e in later if e["event"] == "heal_end"}
            return "1" in healed and len(commits(later, group="1")) > 40 and training_together(later, 2)

        job.wait_for(back, 90, "the group trains again")
        job.wait_for(lambda: len(printed(job.output())) > 6, 60, "some losses")
        events = job.events()
    assert [e for e in events if e["event"] == "drop" and e["group"] == "0"] == []
    assert max(printed(job.output())) < 0.05  # it learns: the mean of 8 numbers has a variance of 0.125


def printed(output: str) -> list[float]:
    return [float(x) for x in re.findall(r"step \d+: loss ([0-9.]+)", output)]
