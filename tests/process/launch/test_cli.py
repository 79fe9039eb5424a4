"""Command lines: what they refuse, and what the lighthouse role adds to its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules["torchx"] = None
from torchft_x.__main__ import main
for command in sys.argv[1:]:
    try:
        code = main([command, "--help"])
    except SystemExit as e:
        code = e.code
    if code:
        sys.exit(code)
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a plain shell."""
    for name in ("TORCHX_JOB_ID", "TORCHFT_LIGHTHOUSE", "TORCHFT_X_TOKEN", "TORCHFT_X_ADVERTISE_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_what_runs_in_the_job_needs_no_torchx() -> None:
    """An image, or a machine with a card, may have PyTorch and torchft_x only."""
    commands = ["supervise", "accompany", "lighthouse", "dumps"]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(commands)
