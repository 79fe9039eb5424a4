"""The commands at a real lighthouse, in this process and in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.rpc.lighthouse.page.served import served
from tests.util import scaled

ROOT = Path(__file__).parents[4]


def test_as_a_process_it_loads_neither_torch_nor_rich(tmp_path: Path) -> None:
    code = (
        "import sys; from torchft_x.__main__ import main; code = main(sys.argv[1:]); "
        "sys.exit(code or sum(name in sys.modules for name in ('torch', 'numpy', 'rich', 'torchx')))"
    )
    with served() as lighthouse:
        done = subprocess.run(
            [sys.executable, "-c", code, "status", lighthouse.run_dir(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=scaled(30),
            check=False,
        )
    assert done.returncode == 0, done.stderr or "it loads too much"
    assert "at step" in done.stdout
