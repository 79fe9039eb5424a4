"""Other trainers (docs/trainers.md): two groups, one killed and started again, end equal. torchtitan's: test_titan.py."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.journeys.jobs import ROOT, Job, running
from torchft_x import env
from torchft_x.comm.store.create import host_store

pytestmark = [pytest.mark.timeout(300)]

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
    python, steps, address = env.read(env.TRAINERS_PYTHON), 250, tmp_path / "lighthouse"
    if python is None:
        pytest.skip(HOW)
    serve = [sys.executable, "-m", "torchft_x", "lighthouse", "--min_replicas", "1", "--bind", "127.0.0.1:0"]
    serve += ["--join_timeout_ms", "2000", "--address_file", str(address)]
    stores = []  # they live as long as the test
    with ExitStack() as stack:

        def start(name: str, command: list[str], **variables: str) -> Job:
            log = tmp_path / f"{name}.log"
            return stack.enter_context(running(command, log, tmp_path / "run", cwd=tmp_path, **variables))

        def group(number: int, life: int) -> Job:
            store, at = host_store("127.0.0.1")
            stores.append(store)
            variables = {
                env.LIGHTHOUSE: address.read_text().strip(), env.REPLICA_GROUP_ID: str(number), env.NUM_REPLICA_GROUPS: "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(at.port), "RANK": "0", "WORLD_SIZE": "1",
                "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                env.MIN_REPLICAS: "2",  # the survivor waits, so that it is not done when the other one is back
            }  # fmt: skip
            return start(f"{number}-{life}", [python, *words, "--steps", str(steps)], **variables)

        start("service", serve).wait_for(address.exists, 20, "the lighthouse's address")
        stays, dies = group(0, 0), group(1, 0)
        for job in (stays, dies):
            job.wait_for(
                lambda job=job: told in job.output(), 120, "it to train"
            )  # a first import, on a disk that others use
        dies.process.kill()
        assert dies.wait(10) == -signal.SIGKILL, "it was done before it was killed"
        back = group(1, 1)
        ends = []
        for job in (stays, back):
            assert job.wait(90) == 0, job.output()[-3000:]
            ends.append([line for line in job.output().splitlines() if line.startswith(f"done at step {steps}:")])
        assert ends[0] == ends[1]
        assert len(ends[0]) == 1
        assert re.search(r"group \S*1 .*rejoined", stays.output())
