"""A real trainer that is looked at and asked all the time: what it says, and that its exit is its own."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.util import scaled
from torchft_x import LighthouseServer, env
from torchft_x.launch.workers import probe_worker
from torchft_x.launch.workers.probe_worker import NoAnswerError, Target

SCRIPT = """
import sys, time
import torch
from torch import nn
from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, defer_compiler_import
from torchft_x.train.introspection.shared_status import Board
defer_compiler_import()  # half of a start
phases, write = [], Board.write
Board.write = lambda self, *moment: (phases.append(moment[:2]), write(self, *moment))
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
print([p for p in phases if p[1] != 1][-6:])
raise ArithmeticError("telltale")
"""


class Torch(http.client.HTTPConnection):
    """A person's tool, at torch's own server."""

    def __init__(self, path: Path) -> None:
        super().__init__("worker")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(scaled(5))
        self.sock.connect(str(self._path))

    def ask(self, handler: str) -> bytes:
        self.request("POST", f"/handler/{handler}", body=b"")
        return self.getresponse().read()


def test_it_answers_while_it_trains_and_its_exit_code_is_its_own() -> None:
    lighthouse = LighthouseServer("127.0.0.1:0", 1)
    with tempfile.TemporaryDirectory() as folder:
        own = {"TORCHFT_X_ATTEMPT": str(env.AttemptEnv(number=3, folder=folder))}
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, lighthouse.address()],
            env={**os.environ, **own, "TORCHFT_X_WORKER_SERVER": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        target, torchs = Target(0, process.pid, Path(folder)), Path(folder, "0.torch.sock")
        heard, recorded, by_torch, deadline = [], 0, {}, time.monotonic() + scaled(60)
        try:
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    heard.append(probe_worker.status(target))
                    if not by_torch and torchs.exists():
                        by_torch = json.loads(Torch(torchs).ask("torchft_x"))
                    assert b"Thread" in probe_worker.ask(target, probe_worker.STACKS, 1.0)
                    recorded += b'"pg_config"' in probe_worker.ask(target, probe_worker.RECORDER, 1.0)
                except (NoAnswerError, ConnectionRefusedError):  # torch's socket is there a moment before it listens
                    time.sleep(0.001)
            out, err = process.communicate(timeout=scaled(5))
            assert process.returncode == 1, err.decode()[-2000:]
            error = json.loads(Path(folder, "0.error.json").read_text())
            assert error["message"]["message"] == "ArithmeticError: telltale"
        finally:
            process.kill()
            process.wait()
            lighthouse.shutdown()
    assert recorded
    assert {**by_torch, "t": 0}.keys() == heard[-1].keys()
    assert by_torch["replica_id"] == heard[-1]["replica_id"]
    last = [h for h in heard if not h["leaving"]][-1]
    assert last["replica_id"].startswith("7:")
    assert (last["rank"], last["attempt"], last["pid"], last["world_size"]) == (0, 3, process.pid, 1)
    assert last["commits"] > 10
    assert last["step_seconds"] < scaled(5)
    # a step is shown as it begins and when it has ended; in between that a wait for other groups begins and ends, while it
    # runs and while it votes. Inside a grant nothing is asked.
    assert out.decode().strip() == str([(19, 2), (19, 2), (19, 2), (19, 3), (19, 3), (20, 0)])
    assert {h["members"] and h["members"][0] for h in heard if h["commits"]} == {last["replica_id"]}
    assert heard[0]["leaving"] is False
    assert sorted(h["step"] for h in heard) == [h["step"] for h in heard]
