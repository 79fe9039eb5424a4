"""Real training under local_ft: supervisors and the lighthouse's own process are killed, groups come and go."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.journeys.jobs import SMALL, WARM, Job, gone, running
from tests.journeys.test_kills import script
from torchft_x import env
from torchft_x.launch.keeper import record
from torchft_x.launch.keeper.commands import main as command
from torchft_x.observe.report import commits, training_together
from torchft_x.timing import TIMING

pytestmark = [pytest.mark.timeout(300)]

# the command as where torchft_x is installed: in these tests it may be on the path only
TORCHX = "import sys; from torchft_x.launch.plugin.command import CmdFt; from torchx.cli.main import main; CmdFt(); main(sys.argv[1:])"


def local_ft(run_dir: Path, *script_args: str) -> list[str]:
    words = [sys.executable, "-c", TORCHX, "run", "-s", "local_ft", "./components.py:ddp", "--run_dir", str(run_dir)]
    return [*words, "--script", "scripts/train_ddp.py", "--", "--pace", "0.05", *SMALL, *script_args]


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
    with running(
        local_ft(run_dir, "--steps", "100000", "--dump-params", str(dumps)), tmp_path / "log", run_dir, **variables
    ) as job:
        job.wait_until_training(2, 120)
        kill(run_dir, "trainer", 1)
        goes_on(job, "1", "again")
        kill(run_dir, "lighthouse", 0)
        job.wait_for(lambda: "it is started again" in job.output(), 30, "the lighthouse's next process")
        for group in ("0", "1"):
            goes_on(job, group, "under it")
        assert command("scale", [str(run_dir), "--replicas", "3"]) == 0
        job.wait_for(lambda: participants(job) == 3, 60, "three groups")
        assert command("scale", [str(run_dir), "--replicas", "1"]) == 0
        job.wait_for(lambda: participants(job) == 1, 60, "one group")
        goes_on(job, "0", "alone")
        assert command("scale", [str(run_dir), "--replicas", "2"]) == 0
        job.wait_for(lambda: participants(job) == 2, 60, "two groups")
        found = record.read(run_dir)
        assert (found.state, found.groups) == ("RUNNING", 2)
        assert command("cancel", [str(run_dir)]) == 0
        assert job.wait(60) != 0
        gone(run_dir, 20)
    how = [e["reason"] for e in job.events() if e["event"] == "member_lost" and e["role"] == "lighthouse"]
    assert len([reason for reason in how if "is lost" in reason]) == 1, (
        how
    )  # the killed one; others have left in good order
    assert not [e for e in job.events() if e["event"] == "new_lineage"]
    checked = script("check_params.py", dumps)
    assert checked.returncode == 0, checked.stdout


def test_a_supervisor_is_killed_and_the_job_does_what_was_asked(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    variables = {**WARM, env.STATE_HOME: str(tmp_path / "state")}
    words = local_ft(run_dir, "--steps", "400")
    words[words.index("--") : words.index("--")] = ["--log_format", "json"]
    with running(words, tmp_path / "log", run_dir, **variables) as job:
        job.wait_until_training(2, 120)
        kill(run_dir, "trainer", 1)
        goes_on(job, "1", "again")
        os.kill(job.worker("0"), signal.SIGKILL)  # which its supervisor says
        assert job.wait(120) == 0, job.output()
        gone(run_dir, 20)
    logs = [path for path in run_dir.rglob("*.log") if "keeper" not in path.parts]
    lines = [line for log in logs for line in log.read_text().splitlines()]
    assert {json.loads(line)["role"] for line in lines} == {"trainer", "supervisor", "lighthouse"}
    found = record.read(run_dir)
    assert found.state == "SUCCEEDED"
    assert [r.state for role in found.roles for r in role.replicas] == ["SUCCEEDED"] * 3
    assert found.restarts == 2  # of the supervisor, and of the other group


def test_who_died_with_its_supervisor_is_not_waited_for(tmp_path: Path) -> None:
    """All are dead at once, one of them without anybody who saw it, and the lighthouse too: they begin again when they are
    there, and not after the lease in which that one might yet finish the job (R21)."""
    run_dir = tmp_path / "run"
    variables = {**WARM, env.STATE_HOME: str(tmp_path / "state"), env.MEMORY: "0"}
    with running(local_ft(run_dir, "--steps", "100000"), tmp_path / "log", run_dir, **variables) as job:
        job.wait_until_training(2, 120)
        other = job.worker("0")
        kill(run_dir, "trainer", 1)
        kill(run_dir, "lighthouse", 0)
        os.kill(other, signal.SIGKILL)
        killed = time.time()
        job.wait_for(lambda: training_together([e for e in job.events() if e["t"] > killed], 2), 60, "both are back")
        os.kill(job.process.pid, signal.SIGINT)
        job.wait(60)
        gone(run_dir, 20)
    died = [e for e in job.events() if e["event"] == "exit" and e["role"] == "supervisor" and e.get("group") == "1"]
    assert died[0]["reason"] == "killed, with its supervisor"
    lineages = [e["t"] for e in job.events() if e["event"] == "new_lineage"]
    assert len(lineages) == 1
    assert lineages[0] - killed < 0.8 * TIMING.lease  # which runs from when its supervisor was heard last
