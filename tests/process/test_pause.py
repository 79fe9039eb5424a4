"""A job that is paused, all groups at once, and goes on where it stopped: no committed step is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.journeys.jobs import BIN, ROOT, running, torchx_ddp
from tests.util import scaled
from torchft_x.observe.report import commits

pytestmark = [pytest.mark.timeout(300)]

SCRIPT = """
import signal, sys, time
from pathlib import Path
import torch
from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
model = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
manager = Manager(ProcessGroupGloo(), model.load_state_dict, model.state_dict, min_replica_size=1)
ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, sgd)
while not told and not Path(sys.argv[1]).exists():
    optimizer.zero_grad()
    ddp(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
manager.shutdown(finished=not told)
sys.exit(143 if told else 0)
"""


def test_a_paused_job_goes_on_from_its_last_step(tmp_path: Path) -> None:
    run_dir, script, enough = tmp_path / "run", tmp_path / "script.py", tmp_path / "enough"
    script.write_text(SCRIPT)

    def say(*words: str) -> str:
        command = [str(BIN / "python"), "-m", "torchft_x", *words, str(run_dir)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(60))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with running(torchx_ddp(run_dir, str(enough), script=str(script)), tmp_path / "a", run_dir) as job:
        job.wait_until_training(2)
        job.wait_for(lambda: len(commits(job.events())) > 40, 60, "some steps")
        paused = "The job is paused by request: groups 0, 1 leave at their next step boundaries, and rest until it is resumed."
        assert say("pause").strip() == paused
        job.wait_for(lambda: len(ends(job.events())) == 2, 60, "both groups to rest")
        before = max(e["step"] for e in commits(job.events()))
        seen = len(commits(job.events()))
        assert say("resume").strip() == "The job is resumed by request: groups 0, 1."
        job.wait_for(lambda: len(commits(job.events())) > seen + 40, 60, "it to go on")
        enough.touch()
        assert job.wait(60) == 0, job.output()
    later = [e["step"] for e in sorted(commits(job.events()), key=lambda e: e["t"])][seen:]
    assert min(later) == before + 1, later[:5]


def ends(events: list[dict[str, object]]) -> list[dict[str, object]]:
    """Lives that have ended because their groups were drained."""
    return [e for e in events if e["event"] == "exit" and e.get("reason") == "drained by request"]
