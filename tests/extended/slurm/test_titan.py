"""torchtitan's Trainer by `torchx run -s slurm_ft ./components.py:titan`: a killed group comes back, and both end equal."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.extended.compat.test_titan import CONSTANT_RATE, printed, step, trainer
from tests.extended.slurm.cluster import SlurmCluster
from tests.extended.slurm.job import SlurmJob
from tests.unit.launch.lines import TORCHX_FT
from torchft_x import env
from torchft_x.launch.slurm import store

pytestmark = [pytest.mark.timeout(600)]


def test_torchtitan_trains_through_a_kill(slurm: SlurmCluster, tmp_path: Path) -> None:
    steps = 60
    words = ("--training.steps", str(steps), "--fault_tolerance.semi_sync_method", "None", *CONSTANT_RATE)
    (python, *words), environ = trainer(tmp_path, *words, scheduler="slurm_ft")
    submit = [python, "-c", TORCHX_FT, *words[words.index("run") :]]
    done = slurm.try_run(*submit, cwd=tmp_path, env={**environ, env.STATE_HOME: str(tmp_path / "state")})
    assert done.returncode == 0, done.stdout + done.stderr
    job = SlurmJob(slurm, tmp_path)
    job.wait_for(lambda: min(step(job, 0), step(job, 1)) >= 10, 150, "both groups to train")
    os.kill(job.worker("torchtitan_ft_1"), signal.SIGKILL)
    job.wait_for(lambda: store.read(job.run_dir).outcome is not None, 150, "the end of the job")
    assert store.read(job.run_dir).outcome == 0, job.output()
    ends = [re.findall(rf"done at step {steps}: .*", printed(job, group)) for group in (0, 1)]
    assert ends[0] == ends[1] != []
    assert "rejoined" in job.output()
