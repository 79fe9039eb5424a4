"""Groups that must not train together: real processes, the sentence of who is refused, and the job's verdict."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.jobs import ROOT, gone, running, torchx_ddp
from tests.util import scaled, wait_for
from torchft_x import LighthouseServer

pytestmark = pytest.mark.slow
SCRIPT = "tests/e2e/differing.py"
SENTENCES = {
    "model": r"its model has 1\.weight \(\d, 4\) float32 where group \d's has 1\.weight \(\d, 4\) float32 .*"
    r"start every group with the same script and settings\.",
    "data": r"its data set is text, \d+ bytes, digest \w+ where group \d's is text, \d+ bytes, digest \w+; "
    r"give every group the same data\.",
    "size": r"its group world size is 2 where group 0's is 1; give every group the same number of workers\.",
}


def start(lighthouse: LighthouseServer, group: int, log: Path, what: str, *runner: str) -> subprocess.Popen[bytes]:
    variables = {
        "TORCHFT_LIGHTHOUSE": lighthouse.address(),
        "REPLICA_GROUP_ID": str(group),
        "TORCHFT_X_ADVERTISE_HOST": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *runner, SCRIPT, what, "1000000"],
            cwd=ROOT, env={**os.environ, **variables}, stdout=out, stderr=out,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("what", "runner"),
    [("model", ()), ("data", ()), ("size", ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"))],
)
def test_a_group_that_comes_later_and_differs_ends_with_a_sentence(
    what: str, runner: Sequence[str], tmp_path: Path
) -> None:
    lighthouse = LighthouseServer("127.0.0.1:0", 1)
    first = start(lighthouse, 0, tmp_path / "0.log", what)
    second = None
    try:
        wait_for(lambda: (lighthouse.status()["quorum"] or {}).get("step", 0) > 2, 60.0, "the first group to train")
        second = start(lighthouse, 1, tmp_path / "1.log", what, *runner)
        code = second.wait(scaled(60))
        text = (tmp_path / "1.log").read_text()
        assert code == (1 if runner else 2), text  # torchrun has a code of its own
        assert re.search(rf"^.*Group 1 \(host 127\.0\.0\.1\) can't train with group 0 .*{SENTENCES[what]}$", text, re.M)
        assert runner or "Traceback" not in text
        step = lighthouse.status()["quorum"]["step"]
        wait_for(lambda: lighthouse.status()["quorum"]["step"] > step + 2, 30.0, "the first group to train on")
        assert first.poll() is None
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.wait()
        lighthouse.shutdown()


@pytest.mark.parametrize("what", ["model", "data"])
def test_the_verdict_of_a_job_says_what_differs(what: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(torchx_ddp(run_dir, what, "40", script=SCRIPT), tmp_path / "job.log", run_dir) as job:
        code = job.wait(90)
        output = job.output()
        assert code != 0, output
        verdict = rf"1 of 2 groups finished, but group \d gave up on .*: torchft_x: Group \d \(host .*{SENTENCES[what]}"
        assert re.search(verdict, output), output
        assert "Traceback" not in output
        said = [line for line in output.splitlines() if "can't train" in line and line.startswith("trainer/")]
        assert len(said) == 2, said  # by the script, and by its supervisor
        gone(run_dir, 10)
    exits = [e for e in job.events() if e["event"] == "exit" and "attempt" in e]  # of groups
    assert sorted(e["code"] for e in exits) == [0, 2]  # nobody was started a second time
    [refusal] = [e for e in job.events() if e["event"] == "error" and e["role"] == "lighthouse"]
    group = next(e["group"] for e in exits if e["code"] == 2)
    assert refusal["replica_id"].startswith(f"{group}:")
    assert re.search(SENTENCES[what], refusal["reason"])
