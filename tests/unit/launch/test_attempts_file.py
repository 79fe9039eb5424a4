"""What a supervisor reports to whoever starts the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchft_x.launch.workers.attempts_file import AttemptsReport, read, write


def test_the_next_supervisor_reads_the_whole_report(tmp_path: Path) -> None:
    path = tmp_path / "attempts"
    assert read(path) == read(None) == AttemptsReport()
    for report in (
        AttemptsReport(restarts=2, reason="killed", number=5, token="c", code=-9),
        AttemptsReport(number=5, token="c"),
    ):
        write(report, path)
        assert read(path) == report


@pytest.mark.parametrize("text", ["", "[]", "7", '{"restarts": 1}', '{"restarts": 0, "reason": "", "number": "x"}'])
def test_a_torn_file_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text(text)
    assert read(tmp_path / "attempts") == AttemptsReport()
