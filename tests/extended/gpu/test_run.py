"""`./scripts/gpu_check` without a card: the checks' own code on the CPU.

Nothing here says anything about a GPU: that is what running the script on one is for.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

from tests.extended.gpu.kit import Kit
from tests.extended.gpu.run import CHECKS, ROOT, Check, main

IN_THIS_PROCESS = ("groups", "state")
BY_OTHERS = ("hsdp_script",)  # diloco_script is the same function, and tests/e2e runs that script
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
    """By `gpu_tests`, which names them: a card's machine may lack what other tests import."""
    marked = {str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py") if "mark.gpu(" in p.read_text()}
    named = (ROOT / "tests/extended/gpu/jobs.py").read_text()
    names = {Path(path).stem.removeprefix("test_") for path in marked if "tests/extended/gpu/" not in path}
    assert [name for name in sorted(names) if f'"{name}"' not in named and f"test_{name}.py" not in named] == []
