"""A group that is given up: its supervisor saves the copy in memory, and the next job goes on from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journeys.jobs import ROOT, SMALL, running
from tests.journeys.test_hsdp import hsdp
from torchft_x.observe.report import commits
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.store import Store

pytestmark = [pytest.mark.timeout(300)]

ARGS = ("--steps", "140", "--pace", "0.05", "--checkpoint-every", "100000")
CRASHES = """
import sys
sys.path.insert(0, {scripts!r})
from benchmarks.trial.common import run
import train_hsdp as script

good = script.make_loader

def make_loader(manager, args, text, **kwargs):
    loader = good(manager, args, text, **kwargs)
    step = loader.step

    def bad():
        if manager.current_step() >= 120:
            raise RuntimeError("a batch that ends whoever reads it")
        return step()

    loader.step = bad
    return loader

script.make_loader = make_loader
sys.exit(run(script))
"""


def command_of(run_dir: Path, script: str, workers: int, url: str) -> list[str]:
    command = hsdp(run_dir, workers, 2, *ARGS, "--checkpoint", url, *SMALL)
    command[command.index("benchmarks/trial/hsdp.py")] = script
    command[command.index("--replicas") : command.index("--replicas")] = ["--max_restarts", "0"]
    return command


def held_by_all(events: list[dict], group: str) -> int:
    """Return the newest step of which both ranks of the group had a copy in memory."""
    held = [(int(e["step"]), e["rank"]) for e in events if e["event"] == "held" and e["group"] == group]
    return max(step for step, rank in held if rank == 0 and (step, 1) in held)


def test_shards_of_two_ranks_that_the_supervisor_held_are_saved_and_one_rank_goes_on(tmp_path: Path) -> None:
    """No durable checkpoint was due yet when a bad batch ends the first job."""
    url, run_dir, bad = f"file://{tmp_path}/a run", tmp_path / "first", tmp_path / "bad.py"
    bad.write_text(CRASHES.format(scripts=str(ROOT / "scripts")))
    with running(command_of(run_dir, str(bad), 2, url), tmp_path / "log", run_dir) as job:
        assert job.wait(120) == 1
        said, events = job.output(), job.events()
    assert "(max_restarts is 0)" in said
    assert "which was held in memory, is saved in " + url in said
    top = newest(Store(url))
    assert top is not None
    assert max(int(e["step"]) for e in commits(events)) == 119
    # how old it is depends on how busy the machine is
    assert top.step in [held_by_all(events, group) for group in "01"]

    run_dir = tmp_path / "second"
    with running(command_of(run_dir, "benchmarks/trial/hsdp.py", 1, url), tmp_path / "log2", run_dir) as job:
        assert job.wait(120) == 0, job.output()
        assert f"resumed from {url} at step {top.step}" in job.output()
        assert min(int(e["step"]) for e in commits(job.events())) == top.step
