"""The table shows what the file holds; a missing peer, a failed benchmark and a smoke run are said; pictures are SVG."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import libraries
from tests.interpreters import PEER_PYTHON


def test_a_missing_peer_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PEER_PYTHON, sys.executable)
    assert str(libraries.find_peer()).startswith("torchft-nightly is not installed for")
    monkeypatch.setenv(PEER_PYTHON, str(tmp_path / "nothing"))
    assert "can't be run" in str(libraries.find_peer())
    monkeypatch.delenv(PEER_PYTHON)
    monkeypatch.setattr(libraries, "ROOT", tmp_path)
    assert "scripts/test --extended makes it" in str(libraries.find_peer())
