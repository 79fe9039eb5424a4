"""Jobs that come to their end, or should: as a user starts them."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.journeys.jobs import running, torchx_ddp
from torchft_x import env
from torchft_x.observe.report import commits

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


@pytest.mark.parametrize("code", [1])
def test_a_group_that_comes_late_waits_for_the_end_of_those_that_finish(tmp_path: Path, code: int) -> None:
    """R21. Their evaluation ends well: it is stopped. It fails: it begins the training again (with a copy of the state it
    would go on from there, and have nothing left to train)."""
    run_dir, script = tmp_path / "run", tmp_path / "script.py"
    script.write_text(SCRIPT)
    shutil.copy(Path(__file__).with_name("plain_sgd.py"), tmp_path)
    log = tmp_path / "log"
    command = torchx_ddp(run_dir, str(tmp_path), script=str(script))
    with running(command, log, run_dir, **{env.MEMORY: "0"}) as job:
        job.wait_until_training(2)
        os.kill(job.worker("1"), signal.SIGKILL)
        killed = time.time()

        def left() -> bool:
            return any(e["event"] == "leave" and e.get("group") == "0" for e in job.events())

        job.wait_for(
            lambda: any(e["t"] > killed and e["participants"] == 1 for e in commits(job.events())), 30, "0 alone"
        )
        (tmp_path / "enough").touch()
        job.wait_for(left, 30, "the end of the training")
        job.wait_for(lambda: "and its process still runs" in job.output(), 60, "the late group's wait")
        begun = (tmp_path / "begun").read_text()
        write(tmp_path / "evaluated", str(code))
        if code == 0:
            assert job.wait(60) == 0, job.output()
        else:
            job.wait_for(lambda: "A new lineage begins" in job.output(), 60, "the late group's beginning")
            write(tmp_path / "evaluated", "0")
            assert job.wait(60) == 0, job.output()
    again = (tmp_path / "begun").read_text().removeprefix(begun)
    assert bool(again) is (code == 1)
    assert (tmp_path / "model").read_text().startswith("0")
    assert code == 1 or (tmp_path / "model").read_text() == "0"


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)
