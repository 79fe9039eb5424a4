"""launch/run_commands: `torchft_x report`, `chaos` and `clean` as a person types them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.observe.written import killed
from torchft_x.__main__ import main


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run in ./runs, the newest one."""
    monkeypatch.chdir(tmp_path)
    for k, name in enumerate(("old", "new")):
        job = killed(tmp_path / "runs" / name)
        for path in (*(job.run_dir / "events").iterdir(), job.run_dir / "events", job.run_dir):
            os.utime(path, (1e9 + k, 1e9 + k))
    return tmp_path / "runs" / "new"


def test_the_newest_run_is_reported(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 0
    out = capsys.readouterr().out
    assert "In full: runs/new/report.html" in out
    assert "1 loss: 1 died" in out
    assert (run_dir / "report.html").read_text().startswith("<!doctype html>")
    assert [p.name for p in run_dir.iterdir() if p.name.startswith(".")] == []


def test_report_against_another_run_and_elsewhere(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_dir), "--against", "runs/old", "--out", "x.html"]) == 0
    assert "against runs/old" in capsys.readouterr().out
    assert Path("x.html").stat().st_size > 10_000
    assert not (run_dir / "report.html").exists()


def test_report_as_json(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 121
    assert not (run_dir / "report.html").exists()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["report", "nowhere"], 2, "nowhere is no run directory"),
        (["report", "a\x1b[31m"], 2, "a\\x1b[31m is no run directory"),
        (["report", "runs/new", "--against", "runs"], 2, "runs is no run directory"),
        (["report", "runs/new", "--out", "no/such/folder/x.html"], 1, "can't be written (No such file or directory)"),
        (["report", "empty"], 1, "nothing is written in empty/events yet"),
    ],
)
def test_mistakes_are_one_sentence(
    args: list[str], code: int, words: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir.parent.parent / "empty" / "events").mkdir(parents=True)
    assert main(args) == code
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_no_run_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert "there is no run directory in ./runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["chaos", "--at", "1:kill"], "no process of runs/new lives on this host: it has ended, or runs elsewhere"),
        (["chaos", "nowhere", "--at", "1:kill"], "nowhere is no run directory"),
        (["chaos", "--at", "1:nap"], "there is no kind of fault 'nap'"),
        (["chaos", "--mean", "0"], "--mean is 0"),
    ],
)
def test_chaos_refuses_what_it_can_not_do(
    args: list[str], words: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    assert words in capsys.readouterr().err
    assert list(run_dir.glob("events/chaos-*")) == []


def test_chaos_far_from_the_nodes_of_a_slurm_job_says_where_to_do_it(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / "slurm").mkdir()
    (run_dir / "slurm/manifest.json").write_text("{}")
    assert main(["chaos", str(run_dir), "--at", "1:kill:0"]) == 2
    assert "do this on the node of a group" in capsys.readouterr().err
