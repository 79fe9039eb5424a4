"""The doctor as a whole: deadlines, the command, its two forms of output."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.lines import ROOT, environment
from tests.util import scaled
from torchft_x.launch.doctor.runner import Case, Check, Finding, as_json, examine, lines, ok, problem, warning


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(environ={}, folder=tmp_path, home=tmp_path)


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


def test_a_check_that_hangs_is_a_finding_and_keeps_what_it_had_found(case: Case) -> None:
    never = threading.Event()

    def hangs(_: Case) -> Iterator[Finding]:
        yield ok("disk", "A first part.")
        never.wait()

    checks = [Check("disk", hangs, seconds=0.05), Check("net", hangs, seconds=0.05, late="The name server is away.")]
    found = examine(case, checks)
    never.set()
    assert [(f.check, f.level) for f in found] == [
        ("disk", "ok"),
        ("disk", "warning"),
        ("disk", "ok"),
        ("net", "warning"),
    ]
    assert "0.05 s" in found[1].text
    assert found[3].text == "The name server is away."


def test_a_check_that_fails_is_a_finding(case: Case) -> None:
    def fails(_: Case) -> Iterator[Finding]:
        raise ZeroDivisionError("oh")

    (found,) = examine(case, [Check("disk", fails)])
    assert found.level == "warning"
    assert "ZeroDivisionError: oh" in found.text


def test_both_forms_say_the_same() -> None:
    findings = [ok("a", "Fine."), warning("long name", "Hm."), problem("c", "No."), problem("c", "No again.")]
    assert lines(findings) == [
        "ok       a          Fine.",
        "warning  long name  Hm.",
        "problem  c          No.",
        "problem  c          No again.",
        "2 problems and 1 warning.",
    ]
    assert as_json(findings)["problems"] == 2
    assert as_json(findings)["findings"][2] == {"check": "c", "level": "problem", "text": "No."}  # type: ignore[index]
    assert lines([ok("a", "Fine.")])[-1] == "All is well."


def test_the_command_looks_at_everything_and_finds_no_problem_here(tmp_path: Path) -> None:
    done = doctor("--run_dir", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["problems"] == 0, done.stdout
    assert {f["check"] for f in told["findings"]} == {
        "python", "torchft_x", "torch", "grpcio", "protobuf", "fsspec", "isal", "h11", "prometheus-client", "rich", "torchx",
        "schedulers", "components",
        "torchxconfig", "ports", "name", "reverse", "lighthouse", "run dir", "open files", "processes", "shared memory",
        "accelerators", "leftovers",
    }  # fmt: skip
    assert not (tmp_path / "run").exists()  # it changes nothing


def test_a_problem_is_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / ".torchxconfig").write_text("[cli:run]\ncomponent = a%b\n")
    done = doctor(folder=tmp_path, TORCHFT_LIGHTHOUSE="nowhere", HOME=str(tmp_path))
    assert done.returncode == 1
    told = done.stdout.splitlines()
    assert any(line.startswith("problem  torchxconfig") and "'%'" in line for line in told)
    assert any(line.startswith("problem  lighthouse") and "TORCHFT_LIGHTHOUSE" in line for line in told)
    assert told[-1].startswith("2 problems")
    assert "Traceback" not in done.stdout + done.stderr


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = ["bash", "-c", f"{sys.executable} -m torchft_x doctor --json | true"]
    environ = environment(PYTHONPATH=str(ROOT))
    assert subprocess.run(command, cwd=ROOT, env=environ, stderr=-1, timeout=scaled(120)).stderr == b""


@pytest.mark.slow
def test_importing_torch_is_a_check_of_its_own() -> None:
    done = doctor("--torch", "--json")
    (found,) = [f for f in json.loads(done.stdout)["findings"] if f["check"] == "import torch"]
    assert found["level"] == "ok"
    assert "gloo" in found["text"]
