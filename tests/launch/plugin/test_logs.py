"""Lines of a file that somebody still writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torchft_x.launch.plugin.logs import follow


def test_all_that_was_written_before_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def looks() -> Iterator[bool]:
        yield False  # the file isn't there yet
        path.write_text("one\nt")
        yield False
        with path.open("a") as file:
            file.write("wo\nthree")
        yield True

    steps = looks()
    assert list(follow(path, lambda: next(steps))) == ["one\n", "two\n", "three\n"]


def test_a_file_that_never_comes(tmp_path: Path) -> None:
    assert list(follow(tmp_path / "log", lambda: True)) == []


def test_bytes_that_are_no_text_and_other_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\n10 %\r20 %\n")
    assert list(follow(path, lambda: True)) == ["\ufffd\ufffd\n", "10 %\r20 %\n"]
