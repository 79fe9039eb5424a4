"""Lines of a file that somebody still writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from torchft_x.launch.plugin import common
from torchft_x.launch.plugin.common import follow
from torchft_x.launch.process.output import LogFile


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "POLL", 0.0)


def test_a_file_that_never_comes(tmp_path: Path) -> None:
    assert list(follow(tmp_path / "log", lambda: True)) == []


def test_bytes_that_are_no_text_and_other_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\n10 %\r20 %\n")
    assert list(follow(path, lambda: True)) == ["\ufffd\ufffd\n", "10 %\r20 %\n"]


def test_only_so_many_old_ones_are_kept(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log", most_bytes=10, old=2)
    for k in range(10):
        log.write(b"%d" % k)  # no end of a line: the file is not put aside
        log.write(b" is a line\n")
    log.close()
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {"log": "", "log.1": "9 is a line\n", "log.2": "8 is a line\n"}


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("0123456789\n")
    log = LogFile(tmp_path / "log", most_bytes=12)
    log.write(b"x\n")
    log.write(b"y\n")
    log.close()
    assert (tmp_path / "log.1").read_text() == "0123456789\nx\n"
    assert (tmp_path / "log").read_text() == "y\n"


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


def test_files_that_are_put_aside_meanwhile(tmp_path: Path) -> None:
    """All lines come once, those of before the first look too, however many files come between two looks."""
    path = tmp_path / "log"
    log = LogFile(path, most_bytes=20)
    count = 0

    def write(lines: int) -> None:
        nonlocal count
        for _ in range(lines):
            log.write(b"line %d\n" % count)
            count += 1

    def looks() -> Iterator[bool]:
        write(7)
        for lines in (0, 1, 3, 9, 0, 2):
            yield False
            write(lines)
        yield True

    steps = looks()
    read = list(follow(path, lambda: next(steps, True)))
    log.close()
    assert read == [f"line {k}\n" for k in range(22)]
    assert len(list(tmp_path.iterdir())) == 8
