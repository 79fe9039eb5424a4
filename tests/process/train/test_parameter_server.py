"""A parameter server and its clients: real processes, real gloo, a killed client, a wrong token."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.torch.train.test_parameter_server import HOST
from tests.util import scaled
from torchft_x import env

ROOT = Path(__file__).parents[3]


def test_the_example_trains_with_workers_that_come_and_go() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "parameter_server.py")]
    environ = {**env.everything(), "TORCHFT_X_TOKEN": "t", "TORCHFT_X_ADVERTISE_HOST": HOST}
    server = subprocess.Popen([*script, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        command = [*script, "work", address, "--seed"]
        endless = subprocess.Popen([*command, "1", "--steps", "100000"], stdout=subprocess.PIPE, text=True, env=environ)
        assert endless.stdout is not None
        assert endless.stdout.readline().startswith("step 0 | loss")
        endless.kill()
        endless.wait()
        done = subprocess.run(
            [*command, "2", "--steps", "300"], capture_output=True, text=True, env=environ, timeout=scaled(60)
        )
        assert done.returncode == 0, done.stderr
        losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
        assert losses[-1] < 0.5 * losses[0]
    finally:
        server.kill()
        server.wait()
