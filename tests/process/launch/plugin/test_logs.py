"""Lines of a file that somebody still writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torchft_x.launch.plugin.logs import follow
from torchft_x.launch.process.output import LogFile


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
