"""`torchft_x demo`, which a new user runs first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.util import scaled

ROOT = Path(__file__).parents[2]


def test_the_demo_survives_its_kill_and_reports_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torchft_x", "demo", "--steps", "100"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        timeout=scaled(100),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert ">>> kill -9" in done.stdout
    assert "died (worker 0 killed by SIGKILL)" in done.stdout.partition("The job ended well.")[2]
