"""Other trainers (docs/trainers.md): two groups, one killed and started again, end equal. torchtitan's: test_titan.py."""

from __future__ import annotations

import json
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.extended.serving import lighthouse, trainer
from tests.interpreters import TRAINERS_PYTHON
from tests.journeys.jobs import Job
from tests.started import ROOT
from torchft_x import env

pytestmark = [pytest.mark.timeout(300)]

HOW = (
    f"{TRAINERS_PYTHON} is not set: the Python of an environment with torchft_x, torch, transformers, accelerate, "
    "lightning and torchtitan (./scripts/test --extended makes one)"
)
EXAMPLES = ROOT / "docs/examples"
COMPILED = ("--compile", "aot_eager")  # by each attempt in its first step. Inductor would take minutes of g++ on a CPU
HF = (str(EXAMPLES / "train_transformers.py"), "--bf16")
LIGHTNING = (str(EXAMPLES / "train_lightning.py"), "--precision", "bf16-mixed", *COMPILED)


@pytest.mark.parametrize(
    ("words", "told", "each"),
    [(HF, "'loss'", 32), (LIGHTNING, "step 20:", 64)],
    ids=["transformers", "lightning"],
)
def test_a_trainer_goes_on_through_a_kill(tmp_path: Path, words: tuple[str, ...], told: str, each: int) -> None:
    python, steps = env.read(TRAINERS_PYTHON), 250
    if python is None:
        pytest.skip(HOW)
    with ExitStack() as stack:
        address = stack.enter_context(lighthouse(tmp_path, "--join_timeout_ms", "2000"))

        def group(number: int, attempt: int) -> Job:
            variables = {
                env.LIGHTHOUSE: address, env.REPLICA_GROUP_ID: str(number), env.NUM_REPLICA_GROUPS: "2",
                "RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                env.MIN_REPLICAS: "2",  # the survivor waits, so that it is not done when the other one is back
            }  # fmt: skip
            recorded = [str(ROOT / "tests/extended/compat/record_samples.py"), str(tmp_path / f"{number}.samples")]
            command = [python, *recorded, *words, "--steps", str(steps)]
            return stack.enter_context(trainer(tmp_path, f"{number}-{attempt}", command, **variables))

        stays, dies = group(0, 0), group(1, 0)
        for job in (stays, dies):
            job.wait_for(lambda job=job: told in job.output(), 120, "it to train, after a first import")
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
    check_samples(tmp_path, steps, each=each)


def check_samples(folder: Path, steps: int, *, each: int) -> None:
    """Check that no sample was committed twice, and that at most those are missing which the killed group did not write."""
    lines = [json.loads(line) for n in (0, 1) for line in (folder / f"{n}.samples").read_text().splitlines()]
    found = [tuple(sample) for _, samples in lines for sample in samples]
    assert {step for step, _ in lines} == set(range(1, steps + 1))
    assert len(found) == len(set(found)), "a sample was committed twice"
    assert steps * each - 2 * each <= len(found) <= steps * each
