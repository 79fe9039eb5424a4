"""Jobs that come to their end, or should: as a user starts them."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.events import commits
from tests.extended.serving import lighthouse
from tests.journeys.jobs import SMALL, running
from tests.journeys.test_hsdp import hsdp
from tests.started import BIN, ROOT, gone
from torchft_x import env
from torchft_x.timing import TIMING
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.store import Store

pytestmark = [pytest.mark.timeout(300)]


def test_a_job_that_is_told_to_stop_saves_its_last_step(tmp_path: Path) -> None:
    """Send SIGTERM to all supervisors, as a time limit does: the checkpoint is the one of that moment."""
    run_dir, url = tmp_path / "run", str(tmp_path / "saved")
    saves = ("--checkpoint", url, "--checkpoint-every", "50000")
    command = hsdp(run_dir, 2, 2, "--steps", "100000", "--pace", "0.02", *SMALL, *saves)
    with running(command, tmp_path / "log", run_dir, **{env.NOTICE: "120"}) as job:  # enough on any machine
        job.wait_until_training(2)
        for pid in {e["pid"] for e in job.events() if e["role"] == "supervisor" and e["event"] == "start"}:
            os.kill(pid, signal.SIGTERM)
        job.wait(60)
        gone(run_dir, 20)
        reached = max(e["step"] for e in commits(job.events())) + 1
    found = newest(Store(url))
    assert found is not None, job.output()
    assert reached - 1 <= found.step <= reached


SLOW = """
import sys, time
sys.path.insert(0, {scripts!r})
import fsspec
from fsspec.implementations.local import LocalFileSystem
import train_ddp
from benchmarks.trial.common import run

class Slow(LocalFileSystem):
    protocol = ("slow",)

    def open(self, path, mode="rb", **kwargs):
        if mode == "wb" and path.endswith(".data"):
            time.sleep({seconds})
        return super().open(path, mode, **kwargs)

fsspec.register_implementation("slow", Slow)
sys.exit(run(train_ddp))
"""


@pytest.mark.parametrize("notice", [12 * TIMING.stop_grace, 0.6 * TIMING.stop_grace], ids=["long", "short"])
def test_a_slow_save_has_the_time_that_the_sender_gives(notice: float, tmp_path: Path) -> None:
    """Send SIGTERM to a supervisor; the save takes longer than the grace of whoever doesn't save."""
    run_dir, script, url = tmp_path / "run", tmp_path / "slow.py", tmp_path / "saved"
    script.write_text(SLOW.format(scripts=str(ROOT / "scripts"), seconds=1.6 * TIMING.stop_grace))
    supervise = [str(BIN / "python"), "-m", "torchft_x", "supervise", "--group", "0", "--groups", "1"]
    supervise += ["--run_dir", str(run_dir), "--", str(script), "--steps", "100000", "--pace", "0.02", *SMALL]
    supervise += ["--checkpoint", f"slow://{url}", "--checkpoint-every", "50000"]
    mark = {env.RUN_DIR: str(run_dir)}
    with lighthouse(tmp_path, **mark) as address:
        where = {**mark, env.LIGHTHOUSE: address, env.NOTICE: str(notice)}
        with running(supervise, tmp_path / "log", run_dir, **where) as job:
            job.wait_until_training(1)
            os.kill(job.process.pid, signal.SIGTERM)
            job.wait(8 * TIMING.stop_grace)
            reached, said = max(e["step"] for e in commits(job.events())) + 1, job.output()
    found = newest(Store(str(url)))
    if notice > TIMING.stop_grace:
        assert found is not None
        assert reached - 1 <= found.step <= reached
        assert "pause" not in said
    else:
        assert found is None
        pause = "worker 0 is still in a pause that it has announced (it saves its last step?)"
        assert re.search(rf"{re.escape(pause)} after \d+ s, ", said)
