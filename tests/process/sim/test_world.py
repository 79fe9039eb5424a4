"""The simulated cluster does what it says: it is deterministic, trains, and each kind of fault strikes as described."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.sim.test_world import (
    digest,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_trace_does_not_depend_on_hashes(hash_seed: str) -> None:
    code = "from tests.unit.sim.test_world import digest; print(digest(6))"
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == digest(6)
