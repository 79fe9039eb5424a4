"""`torchx run ./components.py:hsdp` with FSDP2 in each group, kill -9 of any of its processes, and an independent reference."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.journeys.jobs import ROOT, SMALL, WARM, running, torchx_ddp
from tests.journeys.test_kills import script
from torchft_x.observe.report import commits, training_together

sys.path.insert(0, str(ROOT / "scripts"))
from hsdp_reference import NOISE, compare

from tests.journeys.test_hsdp import (
    hsdp,
)

pytestmark = [pytest.mark.timeout(300)]


def test_compiled_blocks_through_a_kill(tmp_path: Path) -> None:
    """FSDP2 and torch.compile: a group of two loses a rank, compiles anew, and everybody's losses are those of one process
    that compiles nothing."""
    args = ("--component", "hsdp", "--workers", "2", "--kills", "1", "--what", "other", "--reference", "--keep")
    done = script(
        "kill_test.py",
        *args,
        "--dir",
        tmp_path / "run",
        "--",
        *SMALL,
        "--pace",
        "0.06",
        "--compile",
        "aot_eager",
        **WARM,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["kills"], result["findings"]) == (1, [])
    same = result["reference"]
    assert same["steps"] > 25
    assert max(same["loss_error"], same["value_error"]) < NOISE


@pytest.mark.parametrize("then", [(1, 4), (3, 1)], ids=str)
def test_a_checkpoint_goes_on_with_other_numbers_of_ranks_and_groups(tmp_path: Path, then: tuple[int, int]) -> None:
    """2 groups of 2 ranks save; 1 group of 4 ranks, or 3 groups of 1, go on: the losses are those of one process with as
    many batches a step. The script checks the launcher's numbers."""
    url = f"file://{tmp_path}/saved"
    more = ("--checkpoint", url, "--checkpoint-every", "6", *SMALL)
    for name, (groups, workers), steps in (("first", (2, 2), 12), ("second", then, 20)):
        run_dir = tmp_path / name
        args = (
            "--steps",
            str(steps),
            "--min-groups",
            str(groups),
            "--dump-params",
            str(tmp_path / f"{name}-dumps"),
            "--data_parallel_replica_degree",
            str(groups),
            "--data_parallel_shard_degree",
            str(workers),
            *more,
        )
        with running(hsdp(run_dir, workers, groups, *args), tmp_path / f"{name}.log", run_dir) as job:
            assert job.wait(120) == 0, job.output()[-3000:]
            if name == "second":
                assert f"resumed from {url} at step 12" in job.output()
    result = compare(tmp_path / "first-dumps", ["--steps", "20", *SMALL], later=(tmp_path / "second-dumps", then[1]))
    assert result.steps == 20
    assert (result.losses, result.wholes) == (12 * 4 + 8 * then[0] * then[1], 12 * 2 + 8 * then[0])
    assert max(result.loss_error, result.value_error) < NOISE


def test_a_pipeline_of_two_stages_through_a_kill(tmp_path: Path) -> None:
    """docs/examples/train_pipeline.py: a killed stage takes its group with it, and both come back."""
    run_dir = tmp_path / "run"
    command = hsdp(run_dir, 2, 2, "--steps", "100000", "--pace", "0.02")
    command[command.index("scripts/train_hsdp.py")] = "docs/examples/train_pipeline.py"
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


def test_a_wrong_degree_is_one_sentence(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = torchx_ddp(run_dir, "--data_parallel_replica_degree", "3", *SMALL, script="scripts/train_hsdp.py")
    with running(command, tmp_path / "log", run_dir) as job:
        assert job.wait(60) != 0
        assert "--data_parallel_replica_degree is 3, but the job has 2 replica groups" in job.output()
        assert "Traceback" not in job.output()
