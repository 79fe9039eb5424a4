"""A real trainer with a WorkerServer, asked all the time: what it says, and that its exit is its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.util import scaled
from torchft_x import LighthouseServer
from torchft_x.launch import asking
from torchft_x.launch.asking import Silent, Target

SCRIPT = """
import sys, time
import torch
from torch import nn
from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
net = nn.Linear(2, 2)
manager = Manager(
    pg=ProcessGroupGloo(), load_state_dict=net.load_state_dict, state_dict=net.state_dict, min_replica_size=1,
    replica_id="7", rank=0, world_size=1, hostname="127.0.0.1", lighthouse_addr=sys.argv[1],
)
ddp, optimizer = DistributedDataParallel(manager, net), Optimizer(manager, torch.optim.SGD(net.parameters(), lr=0.1))
while manager.current_step() < 20:
    time.sleep(0.02)
    optimizer.zero_grad()
    ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()
if sys.argv[2] == "fail":
    raise ArithmeticError("telltale")
"""


@pytest.mark.parametrize(("end", "code"), [("fail", 1), ("finish", 0)])
def test_it_answers_while_it_trains_and_its_exit_code_is_its_own(end: str, code: int) -> None:
    """A handler that runs when Python ends, and a server that is shut down, each have ways to end or hang the process."""
    lighthouse = LighthouseServer("127.0.0.1:0", 1)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, lighthouse.address(), end],
            env={**os.environ, "TORCHFT_X_WORKER_SERVER": folder, "TORCHFT_X_ATTEMPT": "3"},
            stderr=subprocess.PIPE,
        )  # fmt: skip
        target = Target(0, process.pid, Path(folder, "0.sock"))
        heard, deadline = [], time.monotonic() + scaled(60)
        try:
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    heard.append(asking.status(target, 1.0))
                    assert b"Thread" in asking.ask(target, asking.STACKS, 1.0)
                except Silent:
                    time.sleep(0.001)
            _, err = process.communicate(timeout=scaled(5))
            assert process.returncode == code, err.decode()[-2000:]
            error = Path(folder, "0.error.json")
            assert error.exists() == (end == "fail")
            if end == "fail":
                assert json.loads(error.read_text())["message"]["message"] == "ArithmeticError: telltale"
        finally:
            process.kill()
            process.wait()
            lighthouse.shutdown()
    last = heard[-1]
    assert last["replica_id"].startswith("7:")
    assert (last["rank"], last["attempt"], last["pid"], last["world_size"]) == (0, 3, process.pid, 1)
    assert last["commits"] > 10
    assert last["step_seconds"] < scaled(5)
    assert last["phase"] in ("idle", "asking", "running", "voting")
    assert sorted(h["step"] for h in heard) == [h["step"] for h in heard]
