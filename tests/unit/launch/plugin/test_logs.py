"""Lines of a file that somebody still writes."""

from __future__ import annotations

from pathlib import Path

from torchft_x.launch.plugin.logs import follow
from torchft_x.launch.process.output import LogFile


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
