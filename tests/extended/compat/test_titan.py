"""torchtitan's whole Trainer by `torchx run ./components.py:titan` (docs/trainers.md): two groups, one killed, both end equal;
the whole job killed, and started again from torchtitan's checkpoint.

The files of torchtitan are unmodified; tests/extended/compat/cpu gives it a device. Data set and tokenizer are made here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tests.extended.compat.test_trainers import HOW
from tests.extended.slurm.job import SlurmJob
from tests.interpreters import TRAINERS_PYTHON
from tests.journeys.jobs import WARM, Job, running
from tests.started import ROOT
from torchft_x import env

pytestmark = [pytest.mark.timeout(900)]

CPU = ROOT / "tests/extended/compat/cpu"
EXAMPLES = ROOT / "docs/examples"
CONSTANT_RATE = ("--lr_scheduler.warmup_steps", "0", "--lr_scheduler.min_lr_factor", "1.0")


def trainer(
    folder: Path, *words: str, run: str = "run", config: str = "debugmodel", scheduler: str = "local_cwd"
) -> tuple[list[str], dict[str, str]]:
    """The command of a job with these arguments of torchtitan's, in `folder`, and its variables."""
    python = env.read(TRAINERS_PYTHON)
    if python is None:
        pytest.skip(HOW)
    if not (folder / "tests").exists():
        subprocess.run([python, ROOT / "tests/extended/compat/titan_assets.py"], cwd=folder, check=True, timeout=120)
    command = [python, "-m", "torchx.cli.main", "run", "-s", scheduler, f"{ROOT}/components.py:titan"]
    command += ["--module", "titan_config", "--config", config, "--run_dir", str(folder / run), "--", *words]
    return command, {**WARM, "PYTHONPATH": f"{ROOT}:{CPU}:{EXAMPLES}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def printed(job: Job | SlurmJob, group: int) -> str:
    """What all attempts of a group have printed."""
    logs = sorted((job.run_dir / "logs").glob(f"group-{group}-attempt-[0-9].log"))
    return "".join(log.read_text(errors="replace") for log in logs)


def step(job: Job | SlurmJob, group: int) -> int:
    """torchtitan's own number of the newest step."""
    return max([int(n) for n in re.findall(r"step: +(\d+) +loss", printed(job, group))], default=0)


@pytest.mark.parametrize("method", ["None", "diloco"])
def test_torchtitan_trains_through_a_kill(tmp_path: Path, method: str) -> None:
    steps = 80
    command, environ = trainer(
        tmp_path, "--training.steps", str(steps), "--fault_tolerance.semi_sync_method", method, "--checkpoint.interval", "40",
        "--fault_tolerance.sync_steps", "4", "--fault_tolerance.num_fragments", "1", *CONSTANT_RATE,
    )  # fmt: skip
    with running(command, tmp_path / "log", tmp_path / "run", cwd=tmp_path, **environ) as job:
        job.wait_for(lambda: min(step(job, 0), step(job, 1)) >= 10, 120, "both groups train")
        os.kill(job.worker("torchtitan_ft_1"), signal.SIGKILL)
        assert job.wait(150) == 0, job.output()[-4000:]
        ends = [re.findall(rf"done at step {steps}: .*", printed(job, group)) for group in (0, 1)]
        assert [len(end) for end in ends] == [1, 1]
        shared = [re.findall(r"shared at (\d+): (\S+)", printed(job, group)) for group in (0, 1)]
        after = next(i for i, (a, b) in enumerate(pairwise(shared[1]), 1) if int(b[0]) > int(a[0]) + 1)
        del shared[1][after]  # what it has just copied: the step's number, and the other one's weights amid a round
        first, second = map(dict, shared)
        both = first.keys() & second.keys()
        assert len(both) >= 8, shared
        assert {n: first[n] for n in both} == {n: second[n] for n in both}
        if method == "None":  # with the others torchtitan's steps may end between two exchanges
            assert ends[0] == ends[1]
            assert "rejoined" in job.output()
    assert (tmp_path / f"outputs/checkpoint/step-{steps}").is_dir()


def test_a_whole_job_goes_on_from_torchtitans_checkpoint(tmp_path: Path) -> None:
    def attempt(run: str, steps: int) -> tuple[list[str], dict[str, str]]:
        command, environ = trainer(
            tmp_path, "--training.steps", str(steps), "--fault_tolerance.semi_sync_method", "None", "--checkpoint.interval", "5",
            "--metrics.log_freq", "1", *CONSTANT_RATE, run=run,
        )  # fmt: skip
        return command, {**environ, env.WARM: "0"}

    def saved() -> int:
        """The newest step whose checkpoint is whole."""
        return max((int(p.parent.name[5:]) for p in tmp_path.glob("outputs/checkpoint/step-*/.metadata")), default=0)

    command, environ = attempt("run", 10_000)
    with running(command, tmp_path / "log", tmp_path / "run", cwd=tmp_path, **environ) as job:
        job.wait_for(lambda: saved() and min(step(job, 0), step(job, 1)) > saved(), 120, "a checkpoint")
    begin = saved()  # all processes are killed
    held = re.findall(r"shared at \d+: (\S+)", printed(job, 0))
    command, environ = attempt("again", begin + 3)
    with running(command, tmp_path / "log2", tmp_path / "again", cwd=tmp_path, **environ) as job:
        assert job.wait(150) == 0, job.output()[-4000:]
        for group in (0, 1):
            ((step_found, weights),) = re.findall(r"begins after step (\d+): (\S+)", printed(job, group))
            assert int(step_found) == begin
            assert weights in held
            assert [int(n) for n in re.findall(r"step: +(\d+) +loss", printed(job, group))] == [
                begin + n for n in (1, 2, 3)
            ]
        first, second = (re.findall(r"done at step .*", printed(job, group)) for group in (0, 1))
        assert first == second
        assert len(first) == 1


def test_each_sample_is_committed_once(tmp_path: Path) -> None:
    """With docs/examples/titan_data.py: through a kill, and when the whole job goes on from torchtitan's checkpoint."""

    def attempt(run: str, steps: int, *, kills: bool) -> None:
        command, environ = trainer(
            tmp_path, "--training.steps", str(steps), "--fault_tolerance.semi_sync_method", "None", "--checkpoint.interval", "20",
            "--metrics.log_freq", "1", *CONSTANT_RATE, run=run, config="elasticmodel",
        )  # fmt: skip
        with running(command, tmp_path / f"log-{run}", tmp_path / run, cwd=tmp_path, **environ) as job:
            if kills:
                job.wait_for(lambda: min(step(job, 0), step(job, 1)) >= 10, 120, "both groups train")
                os.kill(job.worker("torchtitan_ft_1"), signal.SIGKILL)
            assert job.wait(150) == 0, job.output()[-4000:]
            if kills:
                assert "rejoined" in job.output()

    attempt("run", 60, kills=True)
    first = positions(tmp_path)
    for n in (0, 1):
        (tmp_path / f"{n}.samples").unlink()
    assert len(set(range(max(first) + 1)) - set(first)) <= 2, "more is missing than the killed group's last batch"
    attempt("again", 70, kills=False)
    second = positions(tmp_path)
    assert sorted(second) == list(range(max(first) + 1, max(first) + 1 + len(second)))
    assert len(second) >= 20


def positions(folder: Path) -> list[int]:
    """Return the positions of all committed samples of an epoch. Each is there once."""
    lines = [json.loads(line) for n in (0, 1) for line in (folder / f"{n}.samples").read_text().splitlines()]
    found = [position for _, samples in lines for epoch, position in samples if epoch == 0]
    assert len(found) == len(set(found)), "a sample was committed twice"
    return found
