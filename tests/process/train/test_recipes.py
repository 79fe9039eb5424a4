"""docs/examples/recipes.py as somebody tries it: by itself. In groups, of which one is killed: tests/extended/jobs/test_recipes.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.process.programs import ROOT, python


def test_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an early stop, which comes long before the last step."""
    for name in ("TORCHFT_LIGHTHOUSE", "REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS", "TORCHFT_X_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    options = ("--steps", "5000", "--patience", "50", "--scaler")
    done = python(ROOT / "docs/examples/recipes.py", *options, cwd=tmp_path)
    assert done.stderr.count("with a lighthouse of its own") == 1
    assert "Traceback" not in done.stderr
    last = re.search(r"done at step (\d+): .* best {'loss': ([\d.e-]+), 'step': (\d+)}", done.stdout)
    assert last, done.stdout
    assert int(last[1]) == int(last[3]) + 51 < 5000
    assert float(last[2]) < 0.012
