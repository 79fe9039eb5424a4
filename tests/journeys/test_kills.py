"""Real jobs whose workers, supervisors or launcher are killed. (a) to (e) of issue 2, small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journeys.jobs import BIN, ROOT, SMALL, WARM
from tests.util import scaled

pytestmark = [pytest.mark.timeout(300)]


def script(name: str, *args: str | Path, timeout: float = 280, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{BIN}:{os.environ.get('PATH', '')}", **variables}
    command = [sys.executable, ROOT / "scripts" / name, *args]
    return subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=scaled(timeout)
    )


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run of two groups with a kill, a stopped worker, and a kill of the lighthouse, with every dump kept."""
    folder = tmp_path_factory.mktemp("kills") / "run"
    args = (
        "--groups",
        "2",
        "--kills",
        "1",
        "--hangs",
        "1",
        "--lighthouse",
        "1",
        "--keep",
        "--dir",
        str(folder),
        "--",
        *SMALL,
        "--pace",
        "0.04",
    )
    return folder, script("kill_test.py", *args, **WARM)


def test_two_groups_survive_kills_with_equal_parameters(killed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = killed
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert (result["kills"], result["hangs"], result["lighthouse_kills"]) == (1, 1, 1)
    assert (result["exit_code"], result["findings"]) == (0, [])
    assert result["shared_steps"] > 20
    for figure in ("detected", "next_commit", "rejoined", "hang_next_commit", "lighthouse_gap"):
        assert result[figure]["missing"] == 0, figure


def test_one_altered_bit_fails_the_check(killed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = killed
    assert script("check_params.py", folder / "dumps").returncode == 0
    altered = script("check_params.py", folder / "dumps", "--flip-one-bit")
    assert altered.returncode == 1
    assert "the parameters differ" in altered.stdout
