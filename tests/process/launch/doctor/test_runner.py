"""The doctor as a whole: deadlines, the command, its two forms of output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.started import ROOT, environment
from tests.util import scaled


def doctor(*words: str, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchft_x", "doctor", *words],
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
