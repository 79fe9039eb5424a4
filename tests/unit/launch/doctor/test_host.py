"""The machine: directories, limits, leftovers."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from tests.unit.launch.doctor.findings import check
from torchft_x.launch.doctor import host
from torchft_x.launch.doctor.host import (
    check_leftovers,
    limit_finding,
    run_dir_finding,
    shared_memory_finding,
)
from torchft_x.launch.doctor.runner import Case
from torchft_x.observe.processes import Orphan


def test_a_run_directory_is_left_as_it_was(tmp_path: Path) -> None:
    found = run_dir_finding(tmp_path)
    assert found.text.startswith(f"{tmp_path} can be written")
    assert " free" in found.text
    assert f"would be made in {tmp_path}" in run_dir_finding(tmp_path / "a" / "b").text
    assert list(tmp_path.iterdir()) == []


def test_one_that_can_not_be_written_or_has_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_dir_finding(Path("/proc/none")).level == "problem"
    (tmp_path / "file").write_text("")
    assert "is no directory" in run_dir_finding(tmp_path / "file").text
    monkeypatch.setattr(host, "FREE", 1 << 60)
    check(run_dir_finding(tmp_path), "warning", "little")


@pytest.mark.parametrize(("ours", "said"), [(100.0, "100.0 s behind"), (-100.0, "100.0 s ahead of")])
def test_a_file_server_with_another_clock(ours: float, said: str, tmp_path: Path) -> None:
    check(run_dir_finding(tmp_path, lambda: time.time() + ours), "warning", said)


@pytest.mark.parametrize(
    ("limits", "level", "said"),
    [
        ((1024, 4096), "ok", "At most 1024 open files"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok", "No limit of open files"),
        ((256, 4096), "warning", "ulimit -n 1024"),
        ((256, 512), "warning", "the hard limit is 512"),
    ],
)
def test_limits(limits: tuple[int, int], level: str, said: str) -> None:
    check(limit_finding("open files", limits, "ulimit -n"), level, said)


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--shm-size" not in shared_memory_finding(Path("/")).text
    assert shared_memory_finding(tmp_path / "none").level == "warning"
    monkeypatch.setattr(host, "SHARED", 1 << 60)
    assert "--shm-size" in shared_memory_finding(tmp_path).text


def test_leftovers_are_named_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(environ={}, folder=Path("/"), home=Path("/"))
    left = [Orphan(11, "torchft_x supervise", "/runs/a"), Orphan(12, "train.py", "")]
    monkeypatch.setattr(host, "orphans", lambda: left)
    (found,) = check_leftovers(case)
    check(found, "warning", "11 (torchft_x supervise, of /runs/a), 12 (train.py, of no run directory)")
    assert found.text.endswith("kill 11 12")
    monkeypatch.setattr(host, "orphans", list)
    assert [f.level for f in check_leftovers(case)] == ["ok"]
