"""Versions: which fit, and what is said of those that don't."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchft_x.launch.doctor.runner import Case
from torchft_x.launch.doctor.software import check_torch
from torchft_x.launch.process import devices


def test_a_torch_that_does_not_load_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libnothing.so is missing')")
    case = Case(environ={}, folder=tmp_path, home=tmp_path, torch=True)
    (found,) = check_torch(case)
    assert found.level == "problem"
    assert "libnothing.so is missing" in found.text
    assert list(check_torch(Case(environ={}, folder=tmp_path, home=tmp_path))) == []


def test_a_torch_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(1000)")
    monkeypatch.setattr(devices, "COLD_IMPORT", 0.3)
    (found,) = check_torch(Case(environ={}, folder=tmp_path, home=tmp_path, torch=True))
    assert "did not end within 0.3 s" in found.text
