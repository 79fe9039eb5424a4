"""Real training under local_ft: supervisors and the lighthouse's own process are killed, groups come and go."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.events import commits
from tests.journeys.jobs import SMALL, WARM, Job, running
from tests.journeys.test_kills import script
from tests.started import gone
from tests.unit.launch.lines import TORCHX_FT
from torchft_x import env
from torchft_x.__main__ import main
from torchft_x.launch.keeper import record

pytestmark = [pytest.mark.timeout(300)]


def kill(run_dir: Path, role: str, number: int) -> None:
    roles = {r.name: r for r in record.read(run_dir).roles}
    process = roles[role].replicas[number].process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


def commits_of(job: Job, group: str) -> int:
    return sum(e["group"] == group for e in commits(job.events()))


def goes_on(job: Job, group: str, what: str) -> None:
    before = commits_of(job, group)
    job.wait_for(lambda: commits_of(job, group) > before + 5, 60, f"group {group} to commit {what}")


def participants(job: Job) -> int:
    return int(max(commits(job.events()), key=lambda e: e["t"])["participants"])


def test_everything_is_killed_and_groups_come_and_go(tmp_path: Path) -> None:
    run_dir, dumps = tmp_path / "run", tmp_path / "dumps"
    variables = {**WARM, env.STATE_HOME: str(tmp_path / "state")}
    words = [sys.executable, "-c", TORCHX_FT, "run", "-s", "local_ft", "./components.py:ddp", "--run_dir", str(run_dir)]
    words += ["--script", "benchmarks/trial/ddp.py", "--", "--pace", "0.05", *SMALL]
    words += ["--steps", "100000", "--dump-params", str(dumps)]
    with running(words, tmp_path / "log", run_dir, **variables) as job:
        job.wait_until_training(2, 120)
        kill(run_dir, "trainer", 1)
        goes_on(job, "1", "again")
        kill(run_dir, "lighthouse", 0)
        job.wait_for(lambda: "it is started again" in job.output(), 30, "the lighthouse's next process")
        for group in ("0", "1"):
            goes_on(job, group, "under it")
        for groups in (3, 1, 2):
            assert main(["scale", str(run_dir), "--replicas", str(groups)]) == 0
            job.wait_for(lambda n=groups: participants(job) == n, 60, f"{groups} groups")
            goes_on(job, "0", f"as one of {groups}")
        found = record.read(run_dir)
        assert (found.state, found.groups) == ("RUNNING", 2)
        assert main(["cancel", str(run_dir)]) == 0
        assert job.wait(60) != 0
        gone(run_dir, 20)
    how = [e["reason"] for e in job.events() if e["event"] == "member_lost" and e["role"] == "lighthouse"]
    # the killed one; others have left in good order
    assert len([reason for reason in how if "is lost" in reason]) == 1, how
    assert not [e for e in job.events() if e["event"] == "new_lineage"]
    checked = script("check_params", dumps)
    assert checked.returncode == 0, checked.stdout
