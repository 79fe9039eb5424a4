"""Other trainers (docs/trainers.md): two groups, one killed and started again, end equal. torchtitan's: test_titan.py."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.comm.store.create import host_store

pytestmark = [pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
HOW = (
    f"{env.TRAINERS_PYTHON} is not set: the Python of an environment with torchft_x, torch, transformers, accelerate, "
    "lightning and torchtitan (.ci/run makes one)"
)
EXAMPLES = ROOT / "docs/examples"
COMPILED = ("--compile", "aot_eager")  # by each life in its first step. Inductor would take minutes of g++ on a CPU
HF = (str(EXAMPLES / "train_transformers.py"), "--bf16")
LIGHTNING = (str(EXAMPLES / "train_lightning.py"), "--precision", "bf16-mixed", *COMPILED)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(HF, "'loss'", id="transformers"),
        pytest.param(LIGHTNING, "step 20:", id="lightning"),
    ],
)
def test_a_trainer_goes_on_through_a_kill(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    steps = 250
    python = env.read(env.TRAINERS_PYTHON)
    if python is None:
        pytest.skip(HOW)
    address_file = tmp_path / "lighthouse"
    command = [sys.executable, "-m", "torchft_x", "lighthouse", "--min_replicas", "1", "--bind", "127.0.0.1:0"]
    command += ["--join_timeout_ms", "2000", "--address_file", str(address_file)]
    started = [subprocess.Popen(command, stderr=(tmp_path / "lighthouse.log").open("wb"))]
    stores = []
    try:
        wait_for(address_file.exists, 20, "the lighthouse's address")

        def start(group: int, life: int) -> tuple[subprocess.Popen[bytes], Path]:
            store, address = host_store("127.0.0.1")
            stores.append(store)
            environ = {
                **env.everything(), "TORCHFT_LIGHTHOUSE": address_file.read_text().strip(),
                "REPLICA_GROUP_ID": str(group), "NUM_REPLICA_GROUPS": "2", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(address.port), "RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT),
                env.MIN_REPLICAS: "2",  # the survivor waits, so that it is not done when the other one is back
            }  # fmt: skip
            log = tmp_path / f"{group}-{life}.log"
            command = [python, *words, "--steps", str(steps)]
            with log.open("wb") as f:
                process = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=f, stderr=f)
            started.append(process)
            return process, log

        (stays, kept), (dies, lost) = start(0, 0), start(1, 0)

        def both_train() -> bool:
            for process, log in ((stays, kept), (dies, lost)):
                assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            return all(told in log.read_text(errors="replace") for log in (kept, lost))

        wait_for(both_train, 120, "both to train")  # a first import of everything, on a disk that others use
        dies.send_signal(signal.SIGKILL)
        assert dies.wait() == -signal.SIGKILL, "it was done before it was killed"
        back, log = start(1, 1)
        ends = []
        for process, path in ((stays, kept), (back, log)):
            process.wait(scaled(90))
            lines = path.read_text(errors="replace").splitlines()
            assert process.returncode == 0, lines[-30:]
            ends.append([line for line in lines if line.startswith(f"done at step {steps}:")])
        assert ends[0] == ends[1]
        assert len(ends[0]) == 1
        assert re.search(r"group \S*1 .*rejoined", kept.read_text(errors="replace"))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
