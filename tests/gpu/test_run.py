"""`./scripts/gpu_check` without a card: the checks' own code on the CPU, and the runner around them.

Nothing here says anything about a GPU: that is what running the script on one is for.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests.gpu.kit import Kit
from tests.gpu.run import CHECKS, ROOT, Check, Result, can_run, main, missing, report, run_all
from tests.util import clock

IN_THIS_PROCESS = ("groups", "state")
BY_OTHERS = ("hsdp_script",)  # diloco_script is the same function, and tests/e2e runs that script
SLOW = [c.name for c in CHECKS if c.module not in IN_THIS_PROCESS and c.on_cpu and c.name not in BY_OTHERS]


@pytest.mark.parametrize("check", [c for c in CHECKS if c.module in IN_THIS_PROCESS], ids=lambda c: c.name)
def test_a_checks_code_runs_on_the_cpu(check: Check, tmp_path: Path) -> None:
    module = importlib.import_module(f"tests.gpu.{check.module}")
    assert getattr(module, check.name)(Kit(torch.device("cpu"), tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SLOW)
def test_a_check_of_processes_runs_on_the_cpu(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["--only", name, "--device", "cpu", "--out", str(out)]) == 0
    (found,) = json.loads(out.read_text())["checks"]
    assert found["status"] == "passed", found["reason"]
    assert found["figures"]


@pytest.mark.slow
def test_one_that_fails_crashes_or_hangs_does_not_end_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check(name, "broken", 60) for name in ("fails", "skips", "crashes")] + [Check("hangs", "broken", 15)]
    found = {r.name: r for r in run_all(checks, "cpu", 400)}
    assert [r.status for r in found.values()] == ["failed", "skipped", "failed", "failed"]
    assert found["fails"].reason.startswith("AssertionError: two and two are five")
    assert found["fails"].figures == {"until then": 3}
    assert found["skips"].reason == "it wants a moon"
    assert found["crashes"].reason.startswith("its process was ended by SIGSEGV")
    assert found["hangs"].reason.startswith(f"it had not ended after {clock(15):.0f} s")
    assert "in hangs" in found["hangs"].reason, "the stacks at the end"
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"# {os.getpid()} hangs" not in left
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_what_does_not_fit_into_the_time_is_skipped() -> None:
    (result,) = run_all([CHECKS[0]], "cpu", 10.0)
    assert (result.status, result.reason) == ("skipped", "no time was left of 10 s")


def test_the_limits_leave_room() -> None:
    assert len({c.name for c in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert callable(getattr(importlib.import_module(f"tests.gpu.{check.module}"), check.name))


def test_what_is_missing_is_said() -> None:
    of_nccl, of_any, elsewhere = (
        Check("a", "m", 1, "NCCL"),
        Check("b", "m", 1),
        Check("c", "m", 1, modules=("no_such",)),
    )
    assert missing(of_nccl, "cpu") == "no accelerator is here: NCCL was not tried"
    assert (can_run(of_nccl, "xpu"), missing(of_nccl, "xpu")) == (False, "NCCL is not tried on xpu")
    assert (can_run(of_any, "xpu"), missing(of_any, "xpu")) == (True, "")
    assert (can_run(elsewhere, "cuda"), missing(elsewhere, "cuda")) == (False, "the package no_such is not installed")
    assert not can_run(Check("d", "m", 1, on_cpu=False), "cpu")


def test_the_json_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "result.json"
    good = Result("a", "passed", "", 1.0, {"x": 1}, "")
    bad = Result("b", "failed", "why", 2.0, {}, "")
    assert report([good], {"device": "cuda"}, 3.0, out) == 0
    assert report([good, bad], {"device": "cpu"}, 3.0, out) == 1
    found = json.loads(out.read_text())
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 1, 0)
    assert found["checks"][1] == {
        "name": "b", "status": "failed", "reason": "why", "seconds": 2.0, "figures": {}, "not_tried": "",
    }  # fmt: skip
    assert "nothing about a GPU" in capsys.readouterr().out


def test_the_command(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "scripts/gpu_check", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    dry = run("--dry", "--device", "cpu")
    assert dry.returncode == 0, dry.stderr
    lines = dry.stdout.splitlines()
    assert len(lines) == len(CHECKS)
    assert "skipped  gpu_tests" in dry.stdout
    assert "nccl_of_one" in lines[0]
    assert "NCCL was not tried" in lines[0]
    wrong = run("--only", "nonsense")
    assert wrong.returncode == 2
    assert "there is no check nonsense; there are nccl_of_one" in wrong.stderr


def test_every_file_with_gpu_tests_is_run() -> None:
    """By `gpu_tests`, which names them: a card's machine may lack what other tests import."""
    marked = {str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py") if "mark.gpu(" in p.read_text()}
    named = (ROOT / "tests/gpu/jobs.py").read_text()
    names = {Path(path).stem.removeprefix("test_") for path in marked if "tests/gpu/" not in path}
    assert [name for name in sorted(names) if f'"{name}"' not in named and f"test_{name}.py" not in named] == []
