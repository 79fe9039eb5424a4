"""Jobs that come to their end, or should: as a user starts them."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.events import commits
from tests.journeys.jobs import running, torchx_ddp
from tests.started import BIN
from torchft_x import env

pytestmark = [pytest.mark.timeout(300)]

SCRIPT = """
import json, os, sys, time
import torch
from plain_sgd import PlainSGD
from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

folder, group = sys.argv[1], os.environ["REPLICA_GROUP_ID"]
model = torch.nn.Linear(4, 4)
manager = Manager(pg=ProcessGroupGloo(), load_state_dict=model.load_state_dict, state_dict=model.state_dict,
                  min_replica_size=1, replica_id=group)
ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, PlainSGD(model.parameters(), lr=0.1))
while not os.path.exists(folder + "/enough") or manager.current_step() < 20:
    optimizer.zero_grad()
    ddp(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
    if optimizer.committed and manager.current_step() == 1:
        with open(folder + "/begun", "a") as f: f.write(group)
with open(folder + "/model", "a") as f: f.write(group)
manager.shutdown()
while not os.path.exists(folder + "/evaluated"):
    time.sleep(0.02)
sys.exit(int(open(folder + "/evaluated").read()))
"""


def test_a_late_group_waits_for_those_that_finish_and_trains_again_if_they_fail(tmp_path: Path) -> None:
    """R21. Without copies in memory: the late group would go on from one, and have nothing left to train.

    The lighthouse stands alone, so that a new lineage waits for its join timeout and not for 30 s.
    """
    service, run_dir, script = tmp_path / "service", tmp_path / "run", tmp_path / "script.py"
    script.write_text(SCRIPT)
    shutil.copy(Path(__file__).with_name("plain_sgd.py"), tmp_path)
    lighthouse = [str(BIN / "python"), "-m", "torchft_x", "lighthouse", "--min_replicas", "1", "--bind", "127.0.0.1:0"]
    lighthouse += ["--join_timeout_ms", "3000", "--job_groups", "0,1", "--run_dir", str(service)]
    with running(lighthouse, tmp_path / "lighthouse", service) as served:
        served.wait_for((service / "lighthouse").exists, 30, "the lighthouse's address")
        command = torchx_ddp(run_dir, str(tmp_path), script=str(script))
        service_words = [
            "--lighthouse",
            (service / "lighthouse").read_text().strip(),
            "--token_file",
            str(service / "token"),
        ]
        command[command.index("--script") : command.index("--script")] = service_words
        with running(command, tmp_path / "log", run_dir, **{env.MEMORY: "0"}) as job:
            job.wait_until_training(2)
            os.kill(job.worker("1"), signal.SIGKILL)
            killed = time.time()
            job.wait_for(
                lambda: any(e["t"] > killed and e["participants"] == 1 for e in commits(job.events())), 30, "0 alone"
            )
            (tmp_path / "enough").touch()
            job.wait_for(lambda: "and its process still runs" in served.output(), 60, "the late group's wait")
            begun = (tmp_path / "begun").read_text()
            write(tmp_path / "evaluated", "1")
            job.wait_for(lambda: "A new lineage begins" in served.output(), 60, "the late group's beginning")
            write(tmp_path / "evaluated", "0")
            assert job.wait(60) == 0, job.output()
        assert served.wait(30) == 0, served.output()
    assert (tmp_path / "begun").read_text() != begun
    assert (tmp_path / "model").read_text().startswith("0")


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)
