"""Command lines: what they refuse, and what the lighthouse role adds to its own."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a plain shell."""
    for name in ("TORCHX_JOB_ID", "TORCHFT_LIGHTHOUSE", "TORCHFT_X_TOKEN", "TORCHFT_X_ADVERTISE_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_what_runs_in_the_job_needs_no_torchx() -> None:
    """An image, or a machine with a card, may have PyTorch and torchft_x only."""
    without = (
        "import sys; sys.modules['torchx'] = None; from torchft_x.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    for words in (["supervise", "--help"], ["accompany", "--help"], ["lighthouse", "--help"], ["dumps", "--help"]):
        done = subprocess.run([sys.executable, "-c", without, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
