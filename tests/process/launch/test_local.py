"""What a job on this machine is given: its GPUs. With made-up machines, TorchX's real requests, and real jobs whose script
says what it sees.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.lines import BOTH, torchx

SMI = "#!/bin/sh\n" + "".join(f"echo 'GPU {k}: NVIDIA H200 (UUID: GPU-{k}aaaaaaa-1111)'\n" for k in range(4))


@pytest.fixture
def machine_of_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As nvidia-smi tells; a folder with a script."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "script.py").touch()
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


AUTO = "auto_set_cuda_visible_devices=True"
Run = Callable[..., Any]


def words_for(folder: Path, *words: str, options: str = "") -> list[str]:
    """A job of two groups."""
    command = ["-s", "local_cwd", *(["-cfg", options] if options else []), "./components.py:ddp"]
    return [*command, "--run_dir", str(folder / "run"), "--script", str(folder / "script.py"), *words]


@pytest.fixture
def asked(machine_of_four: Path) -> Run:
    """CUDA_VISIBLE_DEVICES of each group in the request for such a job, where it is set; or the last line of a refusal."""

    def ask(line: str, *words: str, options: str = "", **environ: str) -> list[str] | str:
        done = torchx("run", "--dryrun", *words_for(machine_of_four, *words, options=options), line=line, **environ)
        if done.returncode != 0:
            return done.stderr.splitlines()[-1]
        request = done.stdout.split("=== SCHEDULER REQUEST ===")[1]
        return re.findall(r"'CUDA_VISIBLE_DEVICES': '([^']*)'", request)

    return ask


@pytest.mark.parametrize("line", BOTH)
def test_each_group_is_given_its_own(asked: Run, line: str) -> None:
    assert asked(line, "--gpu", "1", CUDA_VISIBLE_DEVICES="3,1") == ["3", "1"]
    assert asked(line, "--gpu", "2", options=AUTO) == ["0,1", "2,3"]


@pytest.mark.parametrize("line", BOTH)
def test_the_users_own_value_reaches_each_group(asked: Run, line: str) -> None:
    mine = ("--gpu", "1", "--env", "CUDA_VISIBLE_DEVICES=2,3,A=1")
    assert asked(line, *mine, CUDA_VISIBLE_DEVICES="0,1") == ["2,3", "2,3"]
    assert asked(line, "--env", "CUDA_VISIBLE_DEVICES=''", CUDA_VISIBLE_DEVICES="3,1") == ["", ""]
