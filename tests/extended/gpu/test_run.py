"""`./scripts/gpu_check` without a card: the checks' own code on the CPU. It says nothing about a GPU."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

from tests.extended.gpu.jobs import GPU_TESTS
from tests.extended.gpu.kit import Kit
from tests.extended.gpu.run import CHECKS, ROOT, Check, main

IN_THIS_PROCESS = ("groups", "state")
BY_OTHERS = ("hsdp_script", "fsdp2_with_offload")  # on a CPU the same as diloco_script and fsdp2
SLOW = [c.name for c in CHECKS if c.module not in IN_THIS_PROCESS and c.on_cpu and c.name not in BY_OTHERS]


@pytest.mark.parametrize("check", [c for c in CHECKS if c.module in IN_THIS_PROCESS], ids=lambda c: c.name)
def test_a_checks_code_runs_on_the_cpu(check: Check, tmp_path: Path) -> None:
    module = importlib.import_module(f"tests.extended.gpu.{check.module}")
    assert getattr(module, check.name)(Kit(torch.device("cpu"), tmp_path))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SLOW)
def test_a_check_of_processes_runs_on_the_cpu(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["--only", name, "--device", "cpu", "--out", str(out)]) == 0
    (found,) = json.loads(out.read_text())["checks"]
    assert found["status"] == "passed", found["reason"]
    assert found["figures"]


def test_every_file_with_gpu_tests_is_run() -> None:
    """`gpu_tests` names them: a card's machine may lack what other tests import."""
    marked = {
        str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu(" in p.read_text()
    }
    assert marked - {str(Path(__file__).relative_to(ROOT))} == set(GPU_TESTS)
