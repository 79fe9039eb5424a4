"""One command, a job with two lighthouses of its own (`--lighthouses 2`): the standby takes over, and nobody ever trains apart
(decision 45)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.events import commits
from tests.journeys.jobs import SMALL, TRIAL, running, torchx_ddp
from tests.journeys.test_kills import script
from tests.journeys.test_lighthouse_dies import furthest
from tests.started import gone
from torchft_x.launch.process import process_tree
from torchft_x.net import parse_address
from torchft_x.observe.processes import job_processes

pytestmark = [pytest.mark.timeout(400)]


def command(run_dir: Path, *script_args: str) -> list[str]:
    words = torchx_ddp(run_dir, "--pace", "0.04", *SMALL, *script_args, script=TRIAL)
    words[words.index("--script") : words.index("--script")] = ["--lighthouses", "2"]
    return words


def role(run_dir: Path, address: str) -> list[int]:
    """The processes of the lighthouse at this address: the role's own, and those it has started."""
    bind = f":{parse_address(address).port}\0"
    roles = [pid for pid in job_processes(run_dir) if "\0lighthouse\0" in _cmdline(pid)]
    families = ([pid, *process_tree.descendants(pid)] for pid in roles)
    return next(family for family in families if any(bind in _cmdline(pid) for pid in family))


def _cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def serving(run_dir: Path) -> str:
    """The address of the lighthouse that serves."""
    return (run_dir / "lighthouse").read_text().strip()


def test_the_lighthouse_that_serves_is_lost_for_good_and_the_job_goes_on_to_its_end(tmp_path: Path) -> None:
    run_dir, steps = tmp_path / "run", 700
    with running(command(run_dir, "--steps", str(steps)), tmp_path / "log", run_dir) as job:
        job.wait_until_training(2, 90)
        first = serving(run_dir)
        process_tree.send(role(run_dir, first), signal.SIGKILL)
        code = job.wait(150)
        said = job.output()
        gone(run_dir, 10)
    assert code == 1, "a process of the job was lost: that needs a look"
    assert serving(run_dir) != first
    assert f"The lighthouse at {serving(run_dir)} is back." in said
    assert "All 2 groups finished." in said
    attempts = [e["group"] for e in job.events() if e.get("role") == "supervisor" and e["event"] == "start"]
    assert sorted(attempts) == ["0", "1"], "a trainer has died"
    for group in "01":
        assert [int(e["step"]) for e in commits(job.events(), group=group)] == list(range(steps))


def test_a_holder_that_was_stopped_and_goes_on_issues_nothing(tmp_path: Path) -> None:
    """SIGSTOP, and SIGCONT when the groups have moved and the standby has issued: it ends, and stands by."""
    run_dir, dumps = tmp_path / "run", tmp_path / "dumps"
    journals = lambda: sorted(p.name for p in (run_dir / "lighthouses").glob("*/journal.*"))  # noqa: E731
    words = command(run_dir, "--steps", "100000", "--dump-params", str(dumps))
    with running(words, tmp_path / "log", run_dir) as job:
        job.wait_until_training(2, 90)
        first = serving(run_dir)
        server = max(pid for pid in role(run_dir, first) if "rpc.lighthouse.main" in _cmdline(pid))
        process_tree.send([server], signal.SIGSTOP)
        job.wait_for(lambda: serving(run_dir) != first, 60, "the standby to serve")
        os.kill(job.worker("1"), signal.SIGKILL)  # so that the standby must issue a quorum
        killed = time.time()

        def back() -> bool:
            made = [e for e in commits(job.events(), group="1") if e["t"] > killed and e["attempt"] == 1]
            return any(e["participants"] == 2 for e in made)

        job.wait_for(back, 90, "both groups to train at the standby")
        before, second = journals(), serving(run_dir)
        assert before
        process_tree.send([server], signal.SIGCONT)
        job.wait_for(lambda: "This lighthouse ends: " in job.output(), 60, "the first lighthouse to end")
        goal = furthest(job) + 40
        job.wait_for(lambda: furthest(job) >= goal, 60, "the groups to go on at the standby")
        assert journals() == before
        assert serving(run_dir) == second
        attempts = [e["group"] for e in job.events() if e.get("role") == "supervisor" and e["event"] == "start"]
        assert sorted(attempts) == ["0", "1", "1"]
        job.process.send_signal(signal.SIGINT)
        job.wait(60)
        gone(run_dir, 20)
    checked = script("check_params", dumps)
    assert checked.returncode == 0, checked.stdout
