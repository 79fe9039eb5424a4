"""The machine: directories, limits, devices, leftovers."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from torchft_x.launch import doctor_host
from torchft_x.launch.doctor import Case
from torchft_x.launch.doctor_host import (
    accelerator_finding,
    check_leftovers,
    limit_finding,
    run_dir_finding,
    shared_memory_finding,
)
from torchft_x.observe.processes import Orphan


def test_a_run_directory_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    found = run_dir_finding(tmp_path)
    assert found.text.startswith(f"{tmp_path} can be written")
    assert " free" in found.text
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    found = run_dir_finding(tmp_path / "a" / "b")
    assert f"would be made in {tmp_path}" in found.text
    assert list(tmp_path.iterdir()) == []


def test_one_that_can_not_be_written(tmp_path: Path) -> None:
    assert run_dir_finding(Path("/proc/none")).level == "problem"
    (tmp_path / "file").write_text("")
    assert "is no directory" in run_dir_finding(tmp_path / "file").text


def test_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_host, "FREE", 1 << 60)
    found = run_dir_finding(tmp_path)
    assert found.level == "warning"
    assert "little" in found.text


@pytest.mark.parametrize(("ours", "said"), [(100.0, "100.0 s behind"), (-100.0, "100.0 s ahead of")])
def test_a_file_server_with_another_clock(ours: float, said: str, tmp_path: Path) -> None:
    found = run_dir_finding(tmp_path, lambda: time.time() + ours)
    assert found.level == "warning"
    assert said in found.text


@pytest.mark.parametrize(
    ("limits", "level", "said"),
    [
        ((1024, 4096), "ok", "At most 1024"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok", "No limit"),
        ((256, 4096), "warning", "ulimit -n 1024"),
        ((256, 512), "warning", "the hard limit is 512"),
        ((256, resource.RLIM_INFINITY), "warning", "ulimit -n 1024"),
    ],
)
def test_limits(limits: tuple[int, int], level: str, said: str) -> None:
    found = limit_finding("open files", limits, 1024, "ulimit -n")
    assert found.level == level
    assert said in found.text


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--shm-size" not in shared_memory_finding(Path("/")).text
    assert shared_memory_finding(tmp_path / "none").level == "warning"
    monkeypatch.setattr(doctor_host, "SHARED", 1 << 60)
    assert "--shm-size" in shared_memory_finding(tmp_path).text


TWO = ["/dev/nvidia0", "/dev/nvidia1"]


@pytest.mark.parametrize(
    ("devices", "visible", "level", "said"),
    [
        ([], None, "ok", "on the CPU"),
        ([], "0", "ok", "on the CPU"),
        (TWO, None, "ok", "sees all of them"),
        (TWO, "", "warning", "hides them"),
        (TWO, "-1", "warning", "hides them"),
        (TWO, "0,1", "ok", "CUDA_VISIBLE_DEVICES=0,1"),
        (TWO, "0,2", "warning", "names 2, but there are only 2 devices"),
        (TWO, "GPU-12ab", "ok", "GPU-12ab"),
        (["/dev/kfd"], "3", "ok", "/dev/kfd"),
    ],
)
def test_accelerators(devices: list[str], visible: str | None, level: str, said: str) -> None:
    found = accelerator_finding(devices, visible)
    assert found.level == level
    assert said in found.text


def test_leftovers_are_named_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(environ={}, folder=Path("/"), home=Path("/"))
    left = [Orphan(11, "torchft_x supervise", "/runs/a"), Orphan(12, "train.py", "")]
    monkeypatch.setattr(doctor_host, "orphans", lambda: left)
    (found,) = check_leftovers(case)
    assert found.level == "warning"
    assert "11 (torchft_x supervise, of /runs/a), 12 (train.py, of no run directory)" in found.text
    assert found.text.endswith("kill 11 12")
    monkeypatch.setattr(doctor_host, "orphans", list)
    assert [f.level for f in check_leftovers(case)] == ["ok"]
