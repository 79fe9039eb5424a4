"""Run programs to their end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.util import scaled

ROOT = Path(__file__).parents[2]


def python(
    *words: Any, code: int | None = 0, cwd: Path = ROOT, seconds: float = 60, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words and this clone on its path. Fail if it does not end with `code`; None allows any."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(seconds),
    )
    assert code in (None, done.returncode), f"code {done.returncode}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done
