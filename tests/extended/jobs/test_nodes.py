"""Real training in groups over two nodes, launched by TorchX on this host; one worker is killed, or all are."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.events import workers
from tests.journeys.jobs import SMALL, TOGETHER, WARM, running
from tests.journeys.test_kill_all import killed
from tests.journeys.test_kills import script
from tests.started import BIN, gone
from torchft_x.observe.events import read_events

pytestmark = [pytest.mark.timeout(300)]


def torchx_nodes(run_dir: Path, *script_args: str) -> list[str]:
    """Two groups over 2 nodes, one worker on each."""
    command = [str(BIN / "torchx"), "run", "-s", "local_cwd", "./components.py:hsdp", "--replicas", "2"]
    command += ["--workers_per_replica", "2", "--nodes_per_replica", "2", "--run_dir", str(run_dir)]
    return [*command, "--script", "benchmarks/trial/ddp.py", "--", *script_args]


def test_a_killed_worker_of_a_groups_second_node_brings_the_whole_group_back(tmp_path: Path) -> None:
    run_dir, dumps = tmp_path / "run", tmp_path / "dumps"
    command = torchx_nodes(run_dir, "--steps", "200", "--pace", "0.02", "--dump-params", str(dumps), *SMALL)
    command[command.index("--script") : command.index("--script")] = TOGETHER
    with running(command, tmp_path / "log", run_dir) as job:
        job.wait_until_training(2, 90)
        before = workers(job.events())
        assert [(w.group, w.rank) for w in before] == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
        (victim,) = (w.pid for w in before if (w.group, w.rank) == ("1", 1))
        os.kill(victim, signal.SIGKILL)
        # Said as it was seen: group 0 may have noticed nothing of group 1 before it waited for it.
        job.wait_for(lambda: re.search(r"group 1 (re)?joined at step", job.output()), 90, "group 1 is back")
        assert job.wait(150) == 0, job.output()[-3000:]
        after = workers(job.events())
        assert [(w.group, w.attempt) for w in after] == [("0", 0), ("0", 0), ("1", 1), ("1", 1)]
        assert job.output().count("group 1 died: node 1: worker 1 killed by SIGKILL") == 1
        assert re.search(r"step +200 \| loss .* groups 2", job.output())
        assert "Traceback" not in job.output()
        gone(run_dir, 10)
    checked = script("check_params", dumps)
    assert checked.returncode == 0, checked.stdout


def test_all_workers_are_killed_and_restored_by_their_nodes_supervisors(tmp_path: Path) -> None:
    """Each node's supervisor holds what its own worker has copied, and forks its next attempt (decision 51)."""
    run_dir = tmp_path / "run"
    args = ("--steps", "100000", "--pace", "0.04", "--dump-params", str(tmp_path / "dumps"), *SMALL)
    killed(torchx_nodes(run_dir, *args), tmp_path, run_dir, ranks=2, attempts=1, **WARM)
    assert any(e["warm"] for e in read_events(run_dir) if e["event"] == "start" and e["role"] == "supervisor")
