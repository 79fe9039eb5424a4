"""A job that trains while others ask for its run directory, and that is paused and resumed: no committed step is lost."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from tests.events import commits
from tests.journeys.jobs import Job, running, torchx_ddp
from tests.process.programs import python
from tests.started import BIN
from torchft_x import env

pytestmark = [pytest.mark.timeout(300)]

SCRIPT = """
import signal, sys, time
from pathlib import Path
import torch
from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, defer_compiler_import

defer_compiler_import()  # half of a start
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
SECOND = (
    r"Another job runs in the run directory \S+: (\S+) \(process \d+ on this host\)\. Name another --run_dir, .*Ctrl-C"
)


def test_a_second_job_is_refused_unnoticed_and_a_paused_one_goes_on_from_its_last_step(tmp_path: Path) -> None:
    run_dir, script, enough = tmp_path / "run", tmp_path / "script.py", tmp_path / "enough"
    script.write_text(SCRIPT)
    with running(torchx_ddp(run_dir, str(enough), script=str(script)), tmp_path / "a", run_dir) as job:
        job.wait_until_training(2)
        refuse_a_second(job, script, tmp_path)
        pause_and_resume(job)
        enough.touch()
        assert job.wait(60) == 0, job.output()


def refuse_a_second(job: Job, script: Path, folder: Path) -> None:
    """Refuse it at its submission, and its roles where its submission could not see the run directory."""
    run_dir = job.run_dir
    (handle,) = re.findall(r"local_cwd://torchx/\S+", job.output())[:1]
    before = {path: path.read_bytes() for path in (run_dir / "token", run_dir / "lighthouse")}
    role = [str(BIN / "python"), "-m", "torchft_x"]
    where = ["--run_dir", str(run_dir)]
    refused = {
        "b": torchx_ddp(run_dir, str(script), script=str(script)),
        "lighthouse": [*role, "lighthouse", "--min_replicas", "1", "--job_groups", "0,1", *where],
        "supervise": [*role, "supervise", "--group", "0", "--groups", "2", *where, "--", str(script), str(script)],
    }
    another = {env.TORCHX_JOB_ID: "local_cwd://torchx/b"}
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(running(c, folder / name, folder, **another)) for name, c in refused.items()]
        for second in jobs:
            assert second.wait(60) == 2, second.output()
            assert re.findall(SECOND, second.output()) == [handle], second.output()
    assert before == {path: path.read_bytes() for path in before}
    seen = len(commits(job.events()))
    job.wait_for(lambda: len(commits(job.events())) > seen + 20, 60, "the first job goes on")
    assert [e for e in job.events() if e["event"] in ("member_lost", "restart")] == []


def pause_and_resume(job: Job) -> None:
    def order(word: str) -> str:
        return python("-m", "torchft_x", word, job.run_dir).stdout.strip()

    paused = (
        "The job is paused by request: groups 0, 1 leave at their next step boundaries, and rest until it is resumed."
    )
    assert order("pause") == paused
    job.wait_for(lambda: len(drained(job)) == 2, 60, "both groups to rest")
    before, seen = max(e["step"] for e in commits(job.events())), len(commits(job.events()))
    assert order("resume") == "The job is resumed by request: groups 0, 1."
    job.wait_for(lambda: len(commits(job.events())) > seen + 40, 60, "it to go on")
    later = [e["step"] for e in sorted(commits(job.events()), key=lambda e: e["t"])][seen:]
    assert min(later) == before + 1, later[:5]


def drained(job: Job) -> list[dict[str, object]]:
    """Return the ends of attempts whose groups were drained."""
    return [e for e in job.events() if e["event"] == "exit" and e.get("reason") == "drained by request"]
