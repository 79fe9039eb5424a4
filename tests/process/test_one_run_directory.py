"""Two jobs that were given the same run directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.journeys.jobs import BIN, running, torchx_ddp
from torchft_x import env
from torchft_x.observe.report import commits

pytestmark = [pytest.mark.timeout(300)]

SCRIPT = """
import sys, time
from pathlib import Path
import torch
from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

steps, go_on = int(sys.argv[1]), Path(sys.argv[2])
model = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
manager = Manager(ProcessGroupGloo(), model.load_state_dict, model.state_dict, min_replica_size=1)
ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, sgd)
while manager.current_step() < steps or not go_on.exists():
    optimizer.zero_grad()
    ddp(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
print(f"ENDED step={manager.current_step()}", flush=True)
manager.shutdown()
"""
SECOND = (
    r"Another job runs in the run directory \S+: (\S+) \(process \d+ on this host\)\. Name another --run_dir, .*Ctrl-C"
)


def test_a_second_job_is_refused_and_the_first_one_does_not_notice(tmp_path: Path) -> None:
    run_dir, script, go_on = tmp_path / "run", tmp_path / "script.py", tmp_path / "go_on"
    script.write_text(SCRIPT)
    with running(torchx_ddp(run_dir, "30", str(go_on), script=str(script)), tmp_path / "a", run_dir) as job:
        job.wait_until_training(2)
        (handle,) = re.findall(r"local_cwd://torchx/\S+", job.output())[:1]
        before = {path: path.read_bytes() for path in (run_dir / "token", run_dir / "lighthouse")}
        refused = {  # at its submission; and its roles, where its submission could not see the run directory
            "b": torchx_ddp(run_dir, "1", str(script), script=str(script)),
            "lighthouse": role("lighthouse", run_dir, "--min_replicas", "1", "--job_groups", "0,1"),
            "supervise": role(
                "supervise", run_dir, "--group", "0", "--groups", "2", "--", str(script), "1", str(script)
            ),
        }
        for name, command in refused.items():
            with running(command, tmp_path / name, tmp_path, **{env.TORCHX_JOB_ID: "local_cwd://torchx/b"}) as second:
                assert second.wait(60) == 2, second.output()
                found = re.findall(SECOND, second.output())
            assert found == [handle], second.output()
        assert before == {path: path.read_bytes() for path in before}
        seen = len(commits(job.events()))
        job.wait_for(lambda: len(commits(job.events())) > seen + 20, 60, "the first job goes on")
        assert [e for e in job.events() if e["event"] in ("member_lost", "restart")] == []
        go_on.touch()
        assert job.wait(60) == 0, job.output()
    assert len(re.findall(r"ENDED step=(\d+)", job.output())) == 2


def role(name: str, run_dir: Path, *words: str) -> list[str]:
    cut = words.index("--") if "--" in words else len(words)
    return [str(BIN / "python"), "-m", "torchft_x", name, *words[:cut], "--run_dir", str(run_dir), *words[cut:]]
