"""Real jobs whose workers, supervisors or launcher are killed. (a) to (e) of issue 2, small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journeys.jobs import SMALL, WARM
from tests.started import BIN, ROOT
from tests.util import scaled
from torchft_x.observe.events import read_events

pytestmark = [pytest.mark.timeout(300)]


def script(name: str, *args: str | Path, timeout: float = 280, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of benchmarks/evidence."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{BIN}:{os.environ.get('PATH', '')}", **variables}
    command = [sys.executable, "-m", f"benchmarks.evidence.{name}", *args]
    return subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=scaled(timeout)
    )


def test_two_groups_survive_kills_with_equal_parameters(tmp_path: Path) -> None:
    """A kill, a worker that is stopped for some seconds, and a kill of the lighthouse."""
    folder = tmp_path / "run"
    faults = ("--groups", "2", "--kills", "1", "--hangs", "1", "--lighthouse", "1")
    done = script("kill_test", *faults, "--keep", "--dir", folder, "--", *SMALL, "--pace", "0.04", **WARM)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert (result["kills"], result["hangs"], result["lighthouse_kills"]) == (1, 1, 1)
    assert (result["exit_code"], result["findings"]) == (0, [])
    assert result["shared_steps"] > 20
    for figure in ("detected", "next_commit", "rejoined", "hang_next_commit", "lighthouse_gap"):
        assert result[figure]["missing"] == 0, figure
    events = read_events(folder / "run")
    lost = [e["reason"] for e in events if e["event"] == "member_lost"]
    assert any("worker 0 is stopped" in reason for reason in lost), lost
    restarts = [e["reason"] for e in events if e["event"] == "restart" and e["role"] == "supervisor"]
    assert restarts == ["worker 0 killed by SIGKILL"]  # the stopped one comes back by itself
