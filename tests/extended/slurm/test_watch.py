"""The watcher on a real Slurm, with parts that only sleep."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.extended.slurm.cluster import SlurmCluster
from tests.started import ROOT
from tests.unit.launch.slurm.test_watch import script, written
from tests.util import scaled, wait_for
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.controller import Controller
from torchft_x.launch.slurm.rules.queue import Row
from torchft_x.launch.slurm.rules.state import part_status
from torchft_x.launch.slurm.script import submission
from torchft_x.launch.slurm.submit import submit_parts


@pytest.fixture(autouse=True)
def commands_find_the_cluster(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Path]:
    """A job's run directory, with two watchers."""
    made = written(tmp_path / "run")
    submit_parts(Controller(), made, made.parts)
    command = [sys.executable, "-m", "torchft_x", "slurm-watch", made.run_dir]
    with (tmp_path / "watch.log").open("wb") as log:
        watchers = [subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) for _ in range(2)]
    try:
        yield tmp_path / "run"
    finally:
        store.change(made.run_dir, lambda now: dataclasses.replace(now, cancelled=True))
        Controller().cancel(store.read(made.run_dir).jobs)
        assert [one.wait(scaled(20)) for one in watchers] == [0, 0]  # the job is over


def test_a_killed_part_is_submitted_anew_and_a_cancelled_one_is_respected(watching: Path, slurm: SlurmCluster) -> None:
    controller = Controller()

    def states() -> list[str]:
        rows = {row.job: row for row in controller.rows()}
        return [part_status(rows.get(part.job)).state for part in store.read(watching).groups]

    wait_for(lambda: states() == ["RUNNING", "RUNNING"], 30, "both groups to run")
    log = watching.parent / "watch.log"
    wait_for(lambda: "watches over" in log.read_text(), 20, "a watcher")
    first = store.read(watching).groups

    killed = 0
    for _ in range(4):  # its batch script starts it again three times
        sleeper = wait_for(lambda: (pid := _sleeper(slurm, "1")) != killed and pid, 20, "group 1's process")  # noqa: B023
        os.kill(sleeper, signal.SIGKILL)
        killed = sleeper
    wait_for(lambda: store.read(watching).groups[1].earlier == (first[1].job,), 30, f"another job: {log.read_text()}")
    wait_for(lambda: states() == ["RUNNING", "RUNNING"], 30, "it to run")
    assert store.read(watching).groups[0] == first[0]

    slurm.run("scancel", first[0].job)
    wait_for(lambda: "0" in store.lost_groups(watching), 30, "the lighthouse to be told")
    assert "cancelled" in store.lost_groups(watching)["0"]
    assert store.read(watching).groups[0] == first[0]
    said = log.read_text()
    assert said.count("submitted anew") == 1  # by one of the two
    assert "trainer/1: its job" in said
    assert "exit code 137; submitted anew as job" in said


def test_a_round_of_the_scheduler_is_asked_for_and_the_job_stays_as_it_is(tmp_path: Path) -> None:
    controller = Controller()
    made = written(tmp_path / "run")
    part = script(tmp_path / "run", "--begin=now+3600")
    text = submission(part, app=made.app, role="trainer", ticket="t", run_dir=made.run_dir, numbers=[0, 1])
    job = f"{controller.submit(text)}_1"

    def row() -> Row:
        return next(row for row in controller.rows(app=made.app) if row.job == job)

    before = row()
    assert controller.reschedule(job, f"{made.app}-trainer")
    assert row() == before
    controller.cancel([job.partition("_")[0]])
    wait_for(lambda: not controller.reschedule(job, f"{made.app}-trainer"), 10, "Slurm to say that it waits no longer")


def _sleeper(slurm: SlurmCluster, number: str) -> int:
    """Return the process of a group's part, or 0."""
    for pid in slurm.processes():
        with suppress(OSError):
            proc = Path(f"/proc/{pid}")
            sleeps = (proc / "cmdline").read_bytes() == b"sleep\x00600\x00"
            if sleeps and f"number={number}".encode() in (proc / "environ").read_bytes().split(b"\0"):
                return pid
    return 0
