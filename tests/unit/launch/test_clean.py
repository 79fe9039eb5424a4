"""`torchft_x clean`: old run directories."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from tests.unit.observe.written import Job
from torchft_x.__main__ import main
from torchft_x.launch.run_commands import old_runs

DAY = 86400.0


def a_run(path: Path, age: float, *, ended: bool = True) -> Path:
    job = Job(path)
    job.begin()
    if ended:
        job.end()
    for inside in (*(path / "events").iterdir(), path / "events", path):
        os.utime(inside, (time.time() - age,) * 2)
    return path


def test_what_is_old_goes_and_what_is_young_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, crashed, young = (
        a_run(tmp_path / n, age) for n, age in (("old", 9 * DAY), ("crashed", 8 * DAY), ("young", DAY))
    )
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    assert main(["clean", str(tmp_path), "--yes"]) == 0
    out = capsys.readouterr().out
    assert "9.0 days old" in out
    assert "Removed 2 of 2 runs" in out
    assert [p.exists() for p in (old, crashed, young, tmp_path / "notes" / "mine.txt")] == [False, False, True, True]


def test_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    old = a_run(tmp_path / "old", 9 * DAY)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))  # nobody is there
    assert main(["clean", str(tmp_path)]) == 1
    assert old.exists()
    assert "Remove 1 run" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["clean", str(tmp_path)]) == 0
    assert not old.exists()


def test_what_may_go_on_elsewhere_stays_even_when_asked_for(tmp_path: Path) -> None:
    a_run(tmp_path / "quiet", 60.0, ended=False)
    a_run(tmp_path / "done", 30.0)
    found = old_runs(tmp_path, 0.0, time.time())
    assert [(old.path.name, bool(old.stays)) for old in found] == [("quiet", True), ("done", False)]


def test_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", str(tmp_path / "nowhere")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_what_goes_on_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = a_run(tmp_path / "here", 9 * DAY)
    monkeypatch.setattr("torchft_x.launch.run_commands.job_processes", lambda run_dir: [7] if run_dir == here else [])
    assert main(["clean", str(tmp_path), "--yes"]) == 0
    assert "stays: it goes on" in capsys.readouterr().out
    assert here.exists()
