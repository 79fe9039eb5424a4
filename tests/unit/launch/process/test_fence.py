from __future__ import annotations

from pathlib import Path

import pytest

from tests.util import wait_for
from torchft_x.launch.process import fence
from torchft_x.launch.process.fence import superseded, watch_fence


def test_whoever_wrote_last_is_the_newest(tmp_path: Path) -> None:
    file = tmp_path / "newest"
    assert not superseded(file, "7_1-r0")  # nobody can be asked
    file.write_text("7_1-r0\n")
    assert not superseded(file, "7_1-r0")
    file.write_text("")
    assert not superseded(file, "7_1-r0")
    file.write_text("9_1-r0\n")
    assert superseded(file, "7_1-r0")
    file.write_bytes(b"\xff\xfe")
    assert not superseded(file, "7_1-r0")


def test_one_that_was_started_again_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "EACH", 0.01)
    reported: list[str] = []
    file = tmp_path / "newest"
    file.write_text("7_1-r0\n")
    watch_fence(str(file), "7_1-r0", reported.append)
    assert reported == []
    file.write_text("9_1-r0\n")
    wait_for(lambda: reported, 10, "the older one to be told")
    assert reported == ["it was started again elsewhere, and this is the one before"]
