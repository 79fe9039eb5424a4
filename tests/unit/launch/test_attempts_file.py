"""What a supervisor reports to whoever starts the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchft_x.launch.workers.attempts_file import AttemptsReport, EndedAttempt, read, write

A, B = EndedAttempt(3, "a", 1), EndedAttempt(4, "b", -9)


def test_all_ends_are_reported_again(tmp_path: Path) -> None:
    """The lighthouse may have been away while a supervisor died, and the next one, too (L3)."""
    path = tmp_path / "attempts"
    assert read(path) == read(None) == AttemptsReport()
    running = AttemptsReport(restarts=2, reason="killed", number=5, token="c", ends=(A, B))
    write(running, path)
    assert read(path) == running
    assert read(path).inherited().ends == (A, B, EndedAttempt(5, "c", -9))
    assert running.ended(0).inherited() == running.ended(0)  # no attempt ran
    for _ in range(20):
        running = AttemptsReport(number=5, token="c", ends=running.inherited().ends)
    assert len(running.ends) == 8


@pytest.mark.parametrize("text", ["", "[]", "7", '{"restarts": 1}', '{"restarts": 0, "reason": "", "number": "x"}'])
def test_a_torn_file_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text(text)
    assert read(tmp_path / "attempts") == AttemptsReport()
