"""Real keepers with real processes, which get real signals. The roles' programs are small scripts: no lighthouse, no training."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.process.launch.keeper.kept import PARENT, STAYS, STUBBORN, Kept, keep, role  # noqa: F401
from tests.started import ended
from tests.util import scaled, wait_for
from torchft_x.__main__ import main
from torchft_x.errors import TorchftXError
from torchft_x.launch.keeper import record
from torchft_x.launch.keeper.plan import Process, RolePlan
from torchft_x.launch.keeper.record import JobRecord
from torchft_x.launch.process import process_tree
from torchft_x.observe.events import read_events
from torchft_x.timing import TIMING


def test_one_that_fails(keep, capsys: pytest.CaptureFixture[str]) -> None:
    job = keep(role("bad", "import sys; sys.exit('no such thing')"))
    assert job.end() == 1
    assert job.until("FAILED").reason == "bad ended with code 1: no such thing"
    assert main(["scale", str(job.run_dir), "--replicas", "2"]) == 2
    assert "has ended: FAILED" in capsys.readouterr().err


def test_a_program_that_is_not_there(keep) -> None:
    missing = RolePlan(name="later", replicas=(Process(args=("/no/such/program",), env={}),))
    job = keep(role("first", STAYS), missing)
    assert job.end() == 1
    assert job.until("FAILED").reason == "later: the program /no/such/program is not there, or can't be executed."
    assert not job.pid()


def test_a_killed_supervisor_is_started_again_and_leaves_nothing(keep) -> None:
    job = keep(role("trainer", PARENT, kind="trainer", replicas=2))
    job.until("RUNNING")
    child, other = job.child("trainer", 0), job.child("trainer", 1)
    os.kill(job.pid(0), signal.SIGKILL)
    ended(child)
    wait_for(lambda: job.child("trainer", 0) != child, 20, "its next process")
    wait_for(lambda: job.replica(0).starts and job.replica(0).state == "RUNNING", 20, "that it runs")
    assert (job.replica(0).starts, job.replica(1).starts) == (1, 0)
    assert job.replica(0).last_exit == "killed by SIGKILL"
    assert process_tree.is_alive(other)
    assert "the supervisor of group 0 was killed by SIGKILL" in job.printed("trainer", 0)
    (again,) = [e for e in read_events(job.run_dir) if e["event"] == "restart"]
    assert (again["role"], again["group"]) == ("keeper", "0")
    child = job.child("trainer", 0)
    job.process.terminate()
    assert job.end() == 1
    ended(child, other)


def test_who_is_killed_before_it_begins_an_attempt_costs_the_next_one_no_number(keep) -> None:
    """The next one reads what the one before it wrote; a first one finds nothing of an earlier job."""
    says = (
        "import os, pathlib, sys, time; path = pathlib.Path(sys.argv[sys.argv.index('--attempts_file') + 1]); "
        "before = path.read_text() if path.exists() else 'none'; path.write_text('first'); "
        "print(os.getpid(), before, flush=True); time.sleep(600)"
    )
    job = keep(role("trainer", says, kind="trainer"))
    for number, before in enumerate(("none", "first", "first"), start=1):

        def reported(n: int = number) -> list[list[str]]:
            lines = [line.split() for line in job.printed("trainer").splitlines() if line[:1].isdigit()]
            return lines if len(lines) == n else []

        pid, found = wait_for(reported, 20, f"process {number}")[-1]
        assert found == before
        os.kill(int(pid), signal.SIGKILL)
    job.process.terminate()
    assert job.end() == 1


def test_it_is_cancelled_in_good_order(keep, capsys: pytest.CaptureFixture[str]) -> None:
    job = keep(role("trainer", PARENT, kind="trainer"), role("other", STAYS))
    job.until("RUNNING")
    child = job.child("trainer")
    assert main(["cancel", str(job.run_dir)]) == 0
    assert capsys.readouterr().out == "The job app has ended: CANCELLED.\n"
    assert job.end() == 1
    ended(child)
    found = job.until("CANCELLED")
    assert [r.state for role in found.roles for r in role.replicas] == ["CANCELLED"] * 2
    assert main(["cancel", str(job.run_dir)]) == 0
    assert "has ended already: CANCELLED" in capsys.readouterr().out


def test_a_second_request_is_not_waited_for(keep) -> None:
    job = keep(role("stubborn", STUBBORN))
    job.until("RUNNING")
    wait_for(lambda: "here" in job.printed("stubborn"), 20, "the program")
    pid = job.pid()
    job.process.terminate()
    wait_for(lambda: job.until("RUNNING").reason == "stopped by SIGTERM", 20, "that it has heard of the first")
    began = time.monotonic()
    job.process.terminate()
    job.end()
    assert time.monotonic() - began < 0.6 * TIMING.keeper_grace
    ended(pid)


def test_children_die_with_a_keeper_that_is_killed(keep) -> None:
    job = keep(role("other", STUBBORN))
    job.until("RUNNING")
    pid = job.pid()
    job.process.kill()
    job.end()
    ended(pid)
    found = job.until("FAILED")
    assert "is gone without a word" in found.reason


def test_it_ends_with_its_launcher(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys, json, time\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from tests.process.launch.keeper.kept import Kept, role, STAYS\n"
        "Kept(Path(sys.argv[1]), role('other', STAYS), launcher=os.getpid())\n"
        "time.sleep(600)\n"
    )
    root = str(Path(__file__).parents[4])
    launcher = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "run"), root], cwd=root)

    def known() -> JobRecord | None:
        try:
            return record.read(tmp_path / "run")
        except TorchftXError:
            return None

    try:
        wait_for(lambda: (now := known()) and now.state == "RUNNING", 30, "the job")
        found = known()
        process = found.roles[0].replicas[0].process
        assert process is not None
    finally:
        launcher.kill()
        launcher.wait()
    ended(found.keeper.pid, process.pid)
    last = record.read(tmp_path / "run")
    assert (last.state, last.reason) == ("CANCELLED", "the launcher is gone")


def test_two_jobs_in_one_run_directory(keep, tmp_path: Path) -> None:
    first = keep(role("other", STAYS))
    first.until("RUNNING")
    second = keep(role("other", STAYS), app_id="second")
    assert second.process.wait(scaled(20)) == 2
    assert b"Another job runs in the run directory" in second.process.stderr.read()
    first.process.terminate()
    first.end()
    third = keep(role("other", "pass"), app_id="third")
    assert third.end() == 0
    assert record.read(tmp_path / "run", "app").state == "CANCELLED"
    assert record.read(tmp_path / "run").app_id == "third"


def groups(job: Kept) -> list[str]:
    return list(json.loads((job.run_dir / "keeper" / "groups.json").read_text())["groups"])


def test_more_groups_and_fewer(keep, capsys: pytest.CaptureFixture[str]) -> None:
    job = keep(role("trainer", PARENT, kind="trainer", replicas=2))
    before = job.until("RUNNING")
    assert main(["scale", str(job.run_dir), "--replicas", "0"]) == 2
    assert "torchft_x scale: --replicas is 0; it must lie between 1" in capsys.readouterr().err
    after = job.until("RUNNING")
    assert (after.groups, after.roles) == (before.groups, before.roles)
    assert main(["scale", str(job.run_dir), "--replicas", "4"]) == 0
    assert capsys.readouterr().out == "The job app has 4 groups now; it had 2.\n"
    assert groups(job) == ["0", "1", "2", "3"]
    found = job.until("RUNNING")
    assert found.groups == 4
    newest = found.roles[0].replicas[3]
    assert newest.command[newest.command.index("--groups") + 1] == "4"
    assert newest.command[-2:] == ("--", "3")
    children = [job.child("trainer", k) for k in range(4)]
    assert main(["scale", str(job.run_dir), "--replicas", "1"]) == 0
    ended(*children[1:])
    assert process_tree.is_alive(children[0])
    assert groups(job) == ["0"]
    assert [r.id for r in job.until("RUNNING").roles[0].replicas] == [0]
    assert main(["scale", str(job.run_dir), "--replicas", "2"]) == 0
    wait_for(lambda: job.child("trainer", 1) != children[1], 20, "group 1, again")


def test_commands_without_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["cancel", str(tmp_path)], ["scale", str(tmp_path), "--replicas", "2"]):
        assert main(words) == 2
        assert "no job of local_ft was started in that run directory" in capsys.readouterr().err
    (tmp_path / "job.json").write_text('{"format": 1, "app')
    assert main(["cancel", str(tmp_path)]) == 2
    assert "is torn" in capsys.readouterr().err


def test_a_process_that_is_no_keeper_gets_no_signal(keep, capsys: pytest.CaptureFixture[str]) -> None:
    job = keep(role("other", STAYS))
    found = job.until("RUNNING")
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (job.run_dir / "false").mkdir()
        false = dataclasses.replace(found, run_dir=str(job.run_dir / "false"), keeper=record.pid_of(bystander.pid))
        record.write(false)
        assert main(["cancel", str(job.run_dir / "false")]) == 2
        assert "is not the keeper of the job app" in capsys.readouterr().err
        assert bystander.poll() is None
    finally:
        bystander.communicate()
