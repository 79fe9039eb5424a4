from __future__ import annotations

from pathlib import Path

from torchft_x.launch.process.fence import superseded


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
