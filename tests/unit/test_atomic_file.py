"""Replacement of a whole file."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchft_x.atomic_file import replace_file


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, "old", mode=0o600)
    with path.open() as reader:
        replace_file(path, b"new", sync=True)
        assert (reader.read(), path.read_text()) == ("old", "new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_no_file_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
