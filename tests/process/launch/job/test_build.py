"""The builder: what it takes from the surroundings, and what it sees to be wrong before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.launch.lines import ROOT
from tests.util import scaled


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user's directory with a script."""
    monkeypatch.delenv("TORCHFT_LIGHTHOUSE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def test_a_component_file_loads_no_torch() -> None:
    code = "import sys; from torchft_x import ExtraRole, ft_app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=scaled(60), check=False).returncode == 0
