"""The simulated cluster does the same in each process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torchft_x import env


def test_the_trace_does_not_depend_on_hashes() -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "tests.sim.digest", "--first", "6", "--seeds", "1"]
    found = set()
    for hash_seed in ("0", "1", "random"):
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root), env.TIME_SCALE: "1"}
        found.add(subprocess.run(command, env=environ, cwd=root, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1
