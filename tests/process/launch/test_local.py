"""The GPUs that a job on a made-up machine is given, in TorchX's real requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.launch.process.test_devices import make_torch
from tests.unit.launch.lines import BOTH, ROOT, torchx

AUTO = "auto_set_cuda_visible_devices=True"
Ask = Callable[..., list[str]]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """CUDA_VISIBLE_DEVICES of each group in the request for a job of two groups on a machine with four GPUs."""
    script, smi = tmp_path / "script.py", tmp_path / "nvidia-smi"
    script.touch()
    smi.write_text("#!/bin/sh\nprintf 'GPU\\nGPU\\nGPU\\nGPU\\n'\n")  # for TorchX's option
    smi.chmod(0o755)
    make_torch(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    job = ["./components.py:ddp", "--run_dir", str(tmp_path / "run"), "--script", str(script)]

    def ask(line: str, *words: str, options: tuple[str, ...] = (), **environ: str) -> list[str]:
        environ["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
        done = torchx("run", "--dryrun", "-s", "local_cwd", *options, *job, *words, line=line, **environ)
        assert done.returncode == 0, done.stderr
        return re.findall(r"'CUDA_VISIBLE_DEVICES': '([^']*)'", done.stdout.split("=== SCHEDULER REQUEST ===")[1])

    return ask


@pytest.mark.parametrize("line", BOTH)
def test_each_group_is_given_its_own(asked: Ask, line: str) -> None:
    assert asked(line, "--gpu", "1", CUDA_VISIBLE_DEVICES="3,1") == ["3", "1"]
    assert asked(line, "--gpu", "2", options=("-cfg", AUTO)) == ["0,1", "2,3"]


@pytest.mark.parametrize("line", BOTH)
def test_the_users_own_value_reaches_each_group(asked: Ask, line: str) -> None:
    mine = ("--gpu", "1", "--env", "CUDA_VISIBLE_DEVICES=2,3,A=1")
    assert asked(line, *mine, CUDA_VISIBLE_DEVICES="0,1") == ["2,3", "2,3"]
    assert asked(line, "--env", "CUDA_VISIBLE_DEVICES=''", CUDA_VISIBLE_DEVICES="3,1") == ["", ""]
