"""A real job under `torchft_x chaos`: all that was done is in the report, beside what came of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.events import training_together
from tests.journeys.jobs import SMALL, TRIAL, WARM, running, torchx_ddp
from tests.started import ROOT
from tests.util import scaled
from torchft_x.observe.run import read_run
from torchft_x.timing import TIMING


def _whole(events: list[dict[str, Any]], struck: float, group: str | None) -> bool:
    """Return whether all train together again. A stopped worker counts as lost only after a while."""
    if group is None:
        return any(e["event"] == "start" and e["role"] == "lighthouse" for e in events if e["t"] > struck)
    gone = [e["t"] for e in events if e["event"] == "quorum" and e["t"] > struck and e.get("participants") == 1]
    return bool(gone) and training_together([e for e in events if e["t"] > gone[-1]], 2)


@pytest.mark.timeout(300)
def test_the_report_names_every_fault(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = torchx_ddp(run_dir, "--steps", "100000", "--pace", "0.04", *SMALL, script=TRIAL)
    with running(command, tmp_path / "log", run_dir, **WARM) as job:
        job.wait_until_training(2)
        waits = (f"stop:0:{2 * TIMING.silence_stopped}", f"hang:1:{2.5 * TIMING.lateness}")
        for fault in ("kill:1", *waits, "lighthouse", "drain:0"):
            command = [sys.executable, "-m", "torchft_x", "chaos", str(run_dir), "--at", f"0:{fault}"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(60))
            assert done.returncode == 0, done.stdout + done.stderr
            group = fault.split(":")[1] if ":" in fault else None
            struck = max(float(e["t"]) for e in job.events() if e["event"] == "fault")
            job.wait_for(lambda t=struck, g=group: _whole(job.events(), t, g), 60, f"all train together after {fault}")
    run = read_run(run_dir)
    assert run is not None
    found = {loss.by.kind: loss for loss in run.losses if loss.by is not None}
    assert {kind: loss.kind for kind, loss in found.items()} == {
        "kill": "died",
        "stop": "left out",
        "hang": "left out",
        "lighthouse": "lighthouse",
        "drain": "left",
    }
    for kind in ("kill", "stop", "hang", "drain"):
        names = [name for name, _ in found[kind].phases]
        assert {"fault", "detected", "regrouped", "committed", "back"} <= set(names), kind
        assert found[kind].without > 0
    for kind in ("stop", "hang"):
        assert 1.0 < dict(found[kind].phases)["detected"] < scaled(5), kind
    assert found["lighthouse"].back is not None
    assert run.curve  # the script told its loss
    page = tmp_path / "page.html"
    subprocess.run([sys.executable, "-m", "torchft_x", "report", run_dir, "--out", page], cwd=ROOT, check=True)
    picture = [ROOT / "benchmarks/evidence/report_picture", page, tmp_path / "page.png"]
    shown = subprocess.run(picture, capture_output=True, text=True)
    if shown.returncode == 69:
        pytest.skip(shown.stderr)
    assert shown.returncode == 0, shown.stderr
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
