"""The environment that scripts make on first use, with stand-ins for Python and pip."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.util import scaled

ROOT = Path(__file__).parents[3]
PYTHON = """#!/bin/bash
# Makes a "virtual environment" that holds this file, and records what pip is told to install.
case "$*" in
    --version) echo Python 3.11.0 ;;
    *"-m venv"*) mkdir -p "${@: -1}/bin"; cp "$0" "${@: -1}/bin/python" ;;
    *"-m pip install"*) echo "${@: -1}" >>"$INSTALLED" ;;
esac
"""


def installed(folder: Path, source: str) -> list[str]:
    """What sourcing the file so installs in the environment in `folder`."""
    (folder / "bin").mkdir(exist_ok=True)
    python = folder / "bin" / "python3"
    python.write_text(PYTHON)
    python.chmod(0o755)
    record = folder / "installed"
    record.write_text("")
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; {source}; [ -z ${{tools+set}} ]"],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "TORCHFT_X_VENV": str(folder / "venv"),
            "INSTALLED": str(record),
        },
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Path(word).name for word in record.read_text().split() if not word.startswith("torch==")]


def test_the_demo_waits_for_no_tools_of_developers(tmp_path: Path) -> None:
    """It installed pytest, mypy, moto, kubernetes and fifty more before it showed anything."""
    (demo,) = [line for line in (ROOT / "scripts/demo").read_text().splitlines() if "_env.sh" in line]
    assert installed(tmp_path, demo) == [ROOT.name]
    assert installed(tmp_path, demo) == []
    assert installed(tmp_path, "source scripts/_env.sh") == [f"{ROOT.name}[dev]"]
    assert installed(tmp_path, "source scripts/_env.sh") == []
    assert installed(tmp_path, demo) == []
