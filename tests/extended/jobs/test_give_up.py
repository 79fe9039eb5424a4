"""A group that is given up: what its supervisor holds in memory is saved, and the next job goes on from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journeys.jobs import ROOT, SMALL, running, torchx_ddp
from torchft_x.observe.report import commits
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.reader import Saved
from torchft_x.transfer.durable.store import Store

pytestmark = [pytest.mark.timeout(300)]

CRASHES = """
import sys
sys.path.insert(0, {scripts!r})
import {script} as script

good = script.get_batch

def get_batch(data, args, step, participant):
    if step >= 120:
        raise RuntimeError("a batch that ends whoever reads it")
    return good(data, args, step, participant)

script.get_batch = get_batch
args = getattr(script, "arguments", script.parse_args)
sys.exit(script.exit_code(lambda: script.train(args())))
"""


def command_of(run_dir: Path, script: str, workers: int, *args: str) -> list[str]:
    command = torchx_ddp(run_dir, *args, *SMALL, script=script)
    command[command.index("--replicas") : command.index("--replicas")] = [
        "--workers_per_replica",
        str(workers),
        "--max_restarts",
        "0",
    ]
    command[command.index("./components.py:ddp")] = "./components.py:hsdp"
    return command


def given_up(script: str, workers: int, folder: Path) -> tuple[str, int]:
    """A job in which no durable checkpoint was due yet ends by a bad batch: the URL, and the step of what is saved there."""
    url, run_dir, bad = f"file://{folder}/a run", folder / "run", folder / "bad.py"
    bad.write_text(CRASHES.format(scripts=str(ROOT / "scripts"), script=script))
    with running(command_of(run_dir, str(bad), workers, *args_of(url)), folder / "log", run_dir) as job:
        assert job.wait(120) == 1
        said, events = job.output(), job.events()
    assert "(max_restarts is 0)" in said
    assert "which was held in memory, is saved in " + url in said
    top = newest(Store(url))
    assert top is not None
    assert max(int(e["step"]) for e in commits(events)) == 119
    held = [held_by_all(events, group, workers) for group in "01"]
    assert top.step in held  # how old that is, is a matter of how busy the machine is
    assert top.step >= min(held)
    return url, top.step


def held_by_all(events: list[dict], group: str, workers: int) -> int:
    """The newest step of which all ranks of the group had a copy in memory."""
    of_ranks = [
        {int(e["step"]) for e in events if e["event"] == "held" and (e["group"], e["rank"]) == (group, rank)}
        for rank in range(workers)
    ]
    return max(set.intersection(*of_ranks))


def args_of(url: str) -> tuple[str, ...]:
    return ("--steps", "140", "--pace", "0.05", "--checkpoint", url, "--checkpoint-every", "100000")


def test_what_its_supervisor_held_is_saved(tmp_path: Path) -> None:
    url, step = given_up("train_ddp", 1, tmp_path)
    name = newest(Store(url))
    assert name is not None
    state = Saved(Store(url), name).load()
    assert set(state["parts"]) == {"model", "optim"}
    assert state["torchft"]["step"] == step == state["parts"]["optim"]["state"][0]["step"]


def test_shards_of_two_ranks_are_saved_and_one_rank_goes_on(tmp_path: Path) -> None:
    url, step = given_up("train_hsdp", 2, tmp_path)
    run_dir = tmp_path / "second"
    command = command_of(run_dir, "scripts/train_hsdp.py", 1, *args_of(url))
    with running(command, tmp_path / "log2", run_dir) as job:
        assert job.wait(120) == 0, job.output()
        assert f"resumed from {url} at step {step}" in job.output()
        assert min(int(e["step"]) for e in commits(job.events())) == step
