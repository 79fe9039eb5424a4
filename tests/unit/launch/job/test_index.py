"""Which jobs a user has started."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchft_x.launch.job import index
from torchft_x.launch.job.index import Index


def test_what_was_added_is_found(tmp_path: Path) -> None:
    known = Index(tmp_path / "made")
    assert known.all() == []
    known.add("one", "/runs/1")
    known.add("two", "/runs/2")
    assert known.find("one") == Path("/runs/1")
    assert {name for name, _ in known.all()} == {"one", "two"}
    known.forget("one")
    assert known.find("one") is None
    assert (tmp_path / "made").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../one", "a/b", "/etc/passwd", ".hidden", "a\nb", "\x1b[31m", "x" * 300]
)
def test_names_that_nobody_has(tmp_path: Path, name: str) -> None:
    (tmp_path / "one").write_text("/runs/1")
    assert Index(tmp_path / "jobs").find(name) is None


def test_entries_that_somebody_has_broken(tmp_path: Path) -> None:
    (tmp_path / "relative").write_text("runs/1")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    assert Index(tmp_path).all() == []


def test_the_oldest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST", 3)
    for k in range(5):
        Index(tmp_path).add(f"job{k}", "/runs")
    assert [name for name, _ in Index(tmp_path).all()] == ["job4", "job3", "job2"]
