"""The doctor as a whole: deadlines, the command, its two forms of output; and its checks that start a process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.started import ROOT, TORCHFT_X, environment
from tests.util import scaled
from torchft_x.launch.doctor.runner import Case
from torchft_x.launch.doctor.software import check_torch
from torchft_x.launch.doctor.torchx import check_torchx
from torchft_x.launch.process import devices


def doctor(*words: str, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TORCHFT_X, "doctor", *words],
        cwd=folder,
        env=environment(PYTHONPATH=str(ROOT), **variables),
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )


def test_the_command_looks_at_everything_and_finds_no_problem_here(tmp_path: Path) -> None:
    done = doctor("--run_dir", str(tmp_path / "run"), "--torch", "--json")
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    reported = json.loads(done.stdout)
    assert reported["problems"] == 0, done.stdout
    assert {f["check"] for f in reported["findings"]} == {
        "python", "packages", "import torch", "torchx", "name", "reverse", "lighthouse", "run dir", "limits", "shared memory",
        "leftovers",
    }  # fmt: skip
    assert not (tmp_path / "run").exists()  # it changes nothing
    (imported,) = [f for f in reported["findings"] if f["check"] == "import torch"]
    assert "gloo" in imported["text"]


def test_a_problem_is_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / ".torchxconfig").write_text("[cli:run]\ncomponent = a%b\n")
    done = doctor(folder=tmp_path, TORCHFT_LIGHTHOUSE="nowhere", HOME=str(tmp_path))
    assert done.returncode == 1
    reported = done.stdout.splitlines()
    assert any(line.startswith("problem  torchx ") and "'%'" in line for line in reported)
    assert any(line.startswith("problem  lighthouse") and "TORCHFT_LIGHTHOUSE" in line for line in reported)
    assert reported[-1].startswith("2 problems")
    assert "Traceback" not in done.stdout + done.stderr


def test_a_torch_that_does_not_load_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libnothing.so is missing')")
    case = Case(environ={}, folder=tmp_path, home=tmp_path, torch=True)
    (found,) = check_torch(case)
    assert found.level == "problem"
    assert "libnothing.so is missing" in found.text
    assert list(check_torch(Case(environ={}, folder=tmp_path, home=tmp_path))) == []


def test_a_torch_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(1000)")
    monkeypatch.setattr(devices, "COLD_IMPORT", 0.3)
    (found,) = check_torch(Case(environ={}, folder=tmp_path, home=tmp_path, torch=True))
    assert "did not end within 0.3 s" in found.text


def test_our_schedulers_are_known_where_they_are_installed(tmp_path: Path) -> None:
    """`scheduler = local_ft` was a problem, because TorchX had been asked without its subcommands."""
    (tmp_path / ".torchxconfig").write_text("[cli:run]\nscheduler = local_ft\n")
    plugins, config = check_torchx(Case(environ={}, folder=tmp_path, home=tmp_path))
    assert config.level == "ok"
    assert all(name in plugins.text for name in ("local_ft", "slurm_ft", "kubernetes_ft"))


def test_a_torchx_that_can_not_load_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "torchx").mkdir()
    (tmp_path / "torchx" / "__init__.py").write_text("raise ImportError('plugin acme is broken')")
    first, *_ = check_torchx(Case(environ={}, folder=tmp_path, home=tmp_path))
    assert first.level == "problem"
    assert "plugin acme is broken" in first.text
