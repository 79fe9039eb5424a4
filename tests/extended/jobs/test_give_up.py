"""A group that is given up: what its supervisor holds in memory is saved, and the next job goes on from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journeys.jobs import ROOT, SMALL, running, torchx_ddp
from torchft_x.observe.report import commits
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.store import Store

pytestmark = [pytest.mark.timeout(300)]

ARGS = ("--steps", "140", "--pace", "0.05", "--checkpoint-every", "100000")
CRASHES = """
import sys
sys.path.insert(0, {scripts!r})
import train_hsdp as script

good = script.get_batch

def get_batch(data, args, step, participant):
    if step >= 120:
        raise RuntimeError("a batch that ends whoever reads it")
    return good(data, args, step, participant)

script.get_batch = get_batch
sys.exit(script.exit_code(lambda: script.train(script.arguments())))
"""


def command_of(run_dir: Path, script: str, workers: int, url: str) -> list[str]:
    command = torchx_ddp(run_dir, *ARGS, "--checkpoint", url, *SMALL, script=script)
    at = command.index("--replicas")
    command[at:at] = ["--workers_per_replica", str(workers), "--max_restarts", "0"]
    command[command.index("./components.py:ddp")] = "./components.py:hsdp"
    return command


def held_by_all(events: list[dict], group: str) -> int:
    """The newest step of which both ranks of the group had a copy in memory."""
    of_ranks = [
        {int(e["step"]) for e in events if e["event"] == "held" and (e["group"], e["rank"]) == (group, rank)}
        for rank in range(2)
    ]
    return max(set.intersection(*of_ranks))


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
    assert top.step in [
        held_by_all(events, group) for group in "01"
    ]  # how old it is depends on how busy the machine is

    run_dir = tmp_path / "second"
    with running(command_of(run_dir, "scripts/train_hsdp.py", 1, url), tmp_path / "log2", run_dir) as job:
        assert job.wait(120) == 0, job.output()
        assert f"resumed from {url} at step {top.step}" in job.output()
        assert min(int(e["step"]) for e in commits(job.events())) == top.step
