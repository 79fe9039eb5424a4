"""Groups that must not train together: real processes, the sentence of who is refused, and the job's verdict."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.journeys.jobs import ROOT
from tests.journeys.test_mismatch import (
    SCRIPT,
    SENTENCES,
)
from tests.util import scaled, wait_for
from torchft_x import LighthouseServer


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
