"""docs/examples/recipes.py as somebody tries it: by itself. In groups, of which one is killed: tests/extended/jobs/test_recipes.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.util import scaled

ROOT = Path(__file__).parents[3]


def test_alone(tmp_path: Path) -> None:
    """With an early stop, which comes long before the last step."""
    ours = ("TORCHFT_LIGHTHOUSE", "REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS", "TORCHFT_X_RUN_DIR")
    environ = {**{k: v for k, v in os.environ.items() if k not in ours}, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        str(ROOT / "docs/examples/recipes.py"),
        "--steps",
        "5000",
        "--patience",
        "20",
        "--scaler",
    ]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("with a lighthouse of its own") == 1
    assert "Traceback" not in done.stderr
    last = re.search(r"done at step (\d+): .* best {'loss': ([\d.e-]+), 'step': (\d+)}", done.stdout)
    assert last, done.stdout
    assert int(last[1]) == int(last[3]) + 21 < 5000
    assert float(last[2]) < 0.01
