"""`torchx run ./components.py:hsdp` with FSDP2 in each group, kill -9 of any of its processes, and an independent reference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.jobs import ROOT, SMALL, WARM, torchx_ddp
from tests.journeys.test_kills import script

sys.path.insert(0, str(ROOT / "scripts"))
from hsdp_reference import NOISE
from kill_test import ENDLESS

pytestmark = [pytest.mark.timeout(300)]


def reference(dumps: Path, *args: str) -> tuple[int, dict[str, Any]]:
    done = script("hsdp_reference.py", dumps, "--", *args, *SMALL)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run of two groups of two with three kills, with every dump kept."""
    folder = tmp_path_factory.mktemp("kills") / "run"
    args = ("--component", "hsdp", "--workers", "2", "--kills", "3")
    mixed = ("--what", "mixed", "--seed", "8")  # a rank that follows, rank 0, a whole group
    more = ("--reference", "--keep", "--dir", folder)
    return folder, script("kill_test.py", *args, *mixed, *more, "--", *SMALL, "--pace", "0.06", **WARM)


def test_kills_of_a_rank_zero_another_rank_and_a_group(killed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = killed
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert (result["kills"], result["exit_code"], result["findings"]) == (3, 0, [])
    assert result["shared_steps"] > 20
    same = result["reference"]
    assert same["steps"] > 60
    assert min(same["losses"], same["wholes"] * 2) >= same["steps"]
    assert max(same["loss_error"], same["value_error"]) < NOISE


def test_other_training_or_one_altered_shard_fails_the_check(
    killed: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    dumps = killed[0] / "dumps"
    assert script("check_params.py", dumps).returncode == 0
    code, other = reference(dumps, "--steps", str(ENDLESS), "--lr", "0.002")
    assert code == 1
    assert max(other["loss_error"], other["value_error"]) > NOISE
    altered = script("check_params.py", dumps, "--flip-one-bit")
    assert altered.returncode == 1
    assert "the parameters differ" in altered.stdout


def hsdp(run_dir: Path, workers: int, groups: int, *script_args: str) -> list[str]:
    command = torchx_ddp(run_dir, *script_args, groups=groups, script="scripts/train_hsdp.py")
    command[command.index("./components.py:ddp")] = "./components.py:hsdp"
    command[command.index("--replicas") : command.index("--replicas")] = ["--workers_per_replica", str(workers)]
    return command
