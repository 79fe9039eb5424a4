"""`torchx run ./components.py:hsdp` with FSDP2 in each group, kill -9 of any of its processes, and an independent reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.hsdp_reference import compare
from tests.e2e.jobs import SMALL, running, torchx_ddp
from tests.e2e.test_kills import script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def check_training(dumps: Path, steps: int, wanted: int) -> None:
    """The outside checker, and the loss curve and weights of one process."""
    checked = script("check_params.py", dumps)
    assert checked.returncode == 0, checked.stdout
    result = compare(dumps, ["--steps", str(steps), *SMALL])
    assert result.steps == steps
    assert min(result.losses, result.wholes * 2) >= wanted
    assert result.loss_error < 1e-4
    assert result.value_error < 1e-4


def test_kills_of_a_rank_zero_another_rank_and_a_group(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # seed 3: rank 0, the other rank, the whole group
    args = ("--component", "hsdp", "--workers", "2", "--what", "mixed", "--kills", "3", "--steps-per-kill", "60")
    done = script("kill_test.py", *args, "--keep", "--dir", folder, "--", *SMALL, "--pace", "0.06")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert (result["kills"], result["exit_code"], result["findings"]) == (3, 0, [])
    assert result["shared_steps"] > 20
    check_training(folder / "dumps", 280, 280)


def test_one_altered_shard_fails_the_check(tmp_path: Path) -> None:
    """And a job without kills, in which the launcher's number of groups is checked by the script."""
    run_dir = tmp_path / "run"
    command = torchx_ddp(run_dir, "--steps", "20", "--dump-params", str(tmp_path / "dumps"), *SMALL)
    command[command.index("./components.py:ddp")] = "./components.py:hsdp"
    command[command.index("scripts/train_ddp.py")] = "scripts/train_hsdp.py"
    command[command.index("--replicas") : command.index("--replicas")] = ["--workers_per_replica", "2"]
    command += ["--data_parallel_replica_degree", "2", "--data_parallel_shard_degree", "2", "--min-groups", "2"]
    with running(command, tmp_path / "log", run_dir) as job:
        assert job.wait(90) == 0, job.output()[-3000:]
    check_training(tmp_path / "dumps", 20, 80)
    altered = script("check_params.py", tmp_path / "dumps", "--flip-one-bit")
    assert altered.returncode == 1
    assert "the parameters differ" in altered.stdout


def test_a_wrong_degree_is_one_sentence(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = torchx_ddp(run_dir, "--data_parallel_replica_degree", "3", *SMALL, script="scripts/train_hsdp.py")
    with running(command, tmp_path / "log", run_dir) as job:
        assert job.wait(60) != 0
        assert "--data_parallel_replica_degree is 3, but the job has 2 replica groups" in job.output()
        assert "Traceback" not in job.output()
