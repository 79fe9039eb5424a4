"""docs/examples/recipes.py with all it has in two groups, of which one is killed. It stays equal in both."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.events import commits, workers
from tests.journeys.jobs import running, torchx_ddp
from tests.started import gone


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scaler", [[], ["--scaler"]], ids=["bf16", "scaled"])
def test_a_kill_changes_nothing_that_the_groups_share(tmp_path: Path, scaler: list[str]) -> None:
    run_dir = tmp_path / "run"
    words = ["--steps", "1500", "--patience", "100000", *scaler]
    with running(torchx_ddp(run_dir, *words, script="docs/examples/recipes.py"), tmp_path / "log", run_dir) as job:
        job.wait_until_training(2, 120)
        victim = job.worker("1")
        os.kill(victim, signal.SIGKILL)
        attempts = lambda: [w for w in workers(job.events()) if w.group == "1" and w.attempt == 1]  # noqa: E731
        job.wait_for(attempts, 120, "group 1 is started again")
        assert job.wait(200) == 0, job.output()[-3000:]
        both = [e for e in commits(job.events()) if e["participants"] == 2 and e["group"] == "1" and e["pid"] != victim]
        assert both, "group 1 did not take part again"
        gone(run_dir, 10)
    ends = re.findall(r"done at step 1500: .*", job.output())
    assert len(ends) == 2, job.output()[-3000:]
    assert len(set(ends)) == 1
    assert (
        "trainer/0 Traceback" not in job.output()
    )  # the killed group's loader worker may write one of multiprocessing
