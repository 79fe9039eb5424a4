"""The commands at a real lighthouse, in this process and in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.launch.status.test_commands import lighthouse, run_dir  # noqa: F401
from tests.util import scaled

ROOT = Path(__file__).parents[4]


def test_as_a_process_it_loads_neither_torch_nor_rich(run_dir: str) -> None:
    code = (
        "import sys; from torchft_x.__main__ import main; code = main(sys.argv[1:]); "
        "sys.exit(code or sum(name in sys.modules for name in ('torch', 'numpy', 'rich', 'torchx')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "status", run_dir],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=scaled(30),
    )
    assert done.returncode == 0, done.stderr or "it loads too much"
    assert "at step" in done.stdout
