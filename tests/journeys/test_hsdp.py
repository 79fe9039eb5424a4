"""`torchx run ./components.py:hsdp` with FSDP2 in each group, kill -9 of any of its processes, and an independent reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.evidence.hsdp_reference import NOISE
from tests.journeys.jobs import SMALL, WARM, torchx_ddp
from tests.journeys.test_kills import script

pytestmark = [pytest.mark.timeout(300)]


def test_kills_of_a_rank_zero_another_rank_and_a_group(tmp_path: Path) -> None:
    """That the comparison finds another training: tests/extended/jobs/test_hsdp.py."""
    folder = tmp_path / "run"
    args = ("--component", "hsdp", "--workers", "2", "--kills", "3")
    mixed = ("--what", "mixed", "--seed", "8")  # a rank that follows, rank 0, a whole group
    done = script(
        "kill_test", *args, *mixed, "--reference", "--keep", "--dir", folder, "--", *SMALL, "--pace", "0.06", **WARM
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert (result["kills"], result["exit_code"], result["findings"]) == (3, 0, [])
    assert result["shared_steps"] > 20
    same = result["reference"]
    assert same["steps"] > 60
    assert min(same["losses"], same["wholes"] * 2) >= same["steps"]
    assert max(same["loss_error"], same["value_error"]) < NOISE


def hsdp(run_dir: Path, workers: int, groups: int, *script_args: str) -> list[str]:
    command = torchx_ddp(run_dir, *script_args, groups=groups, script="benchmarks/trial/hsdp.py")
    command[command.index("./components.py:ddp")] = "./components.py:hsdp"
    command[command.index("--replicas") : command.index("--replicas")] = ["--workers_per_replica", str(workers)]
    return command
