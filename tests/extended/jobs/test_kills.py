"""Real jobs whose workers, supervisors or launcher are killed. (a) to (e) of issue 2, small."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.journeys.jobs import BIN, SMALL, gone, running, torchx_ddp
from tests.journeys.test_kills import (
    script,
)
from torchft_x.observe.processes import job_processes

pytestmark = [pytest.mark.timeout(300)]


def test_each_rank_of_groups_of_two_is_equal_in_both_groups(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = torchx_ddp(run_dir, "--steps", "20", "--dump-params", str(tmp_path / "dumps"), *SMALL)
    command[command.index("--replicas") : command.index("--replicas")] = ["--workers_per_replica", "2"]
    with running(command, tmp_path / "log", run_dir) as job:
        assert job.wait(90) == 0, job.output()[-3000:]
    checked = script("check_params.py", tmp_path / "dumps")
    assert checked.returncode == 0, checked.stdout
    assert "ok: 80 dumps" in checked.stdout


def test_a_killed_supervisor_takes_its_worker_along_and_the_job_names_the_group(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(torchx_ddp(run_dir, "--steps", "1500", *SMALL), tmp_path / "log", run_dir) as job:
        job.wait_until_training(2)
        worker = job.worker("1")
        (supervisor,) = {e["pid"] for e in job.events() if e.get("role") == "supervisor" and e.get("group") == "1"}
        os.kill(supervisor, signal.SIGKILL)
        job.wait_for(lambda: worker not in job_processes(run_dir), 10, "the end of the worker")
        assert job.wait(120) == 1
        assert re.search(r"group 1\b.*(lost|gone|died|supervisor)", job.output()), job.output()[-3000:]
        assert re.search(r"step +1500 \|", job.output())  # the survivor has finished
        gone(run_dir, 10)


def test_the_peers_two_shell_launch_works_without_supervisor_and_torchx(tmp_path: Path) -> None:
    """A lighthouse, then torchrun twice. Two groups at least, or the first would be done before the second is up."""
    run_dir = tmp_path / "run"  # only so that whatever is left can be found and killed
    address = tmp_path / "address"
    mark = {"TORCHFT_X_RUN_DIR": str(run_dir)}
    lighthouse = [str(BIN / "torchft_x"), "lighthouse", "--min_replicas", "2", "--bind", "[::]:0"]
    if not (BIN / "torchft_x").exists():
        lighthouse[:1] = [sys.executable, "-m", "torchft_x"]
    lighthouse += ["--join_timeout_ms", "10000", "--address_file", str(address)]
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc_per_node", "1", "scripts/train_ddp.py"]
    torchrun += ["--steps", "60", "--dump-params", str(tmp_path / "dumps"), *SMALL]
    with running(lighthouse, tmp_path / "lighthouse.log", run_dir, **mark) as service:
        service.wait_for(address.exists, 15, "the lighthouse serves")
        where = {"TORCHFT_LIGHTHOUSE": address.read_text().strip(), "NUM_REPLICA_GROUPS": "2"}
        with (
            running(torchrun, tmp_path / "0.log", run_dir, REPLICA_GROUP_ID="0", **where, **mark) as one,
            running(torchrun, tmp_path / "1.log", run_dir, REPLICA_GROUP_ID="1", **where, **mark) as two,
        ):
            assert one.wait(90) == 0, one.output()[-3000:]
            assert two.wait(30) == 0, two.output()[-3000:]
            assert re.search(r"step +60 \| loss .* groups 2", one.output())
            assert "done: 60 steps committed" in one.output()
            assert "done:" not in two.output()  # one group talks for both
    checked = script("check_params.py", tmp_path / "dumps")
    assert checked.returncode == 0, checked.stdout


def test_no_process_is_left_when_the_launcher_is_killed(tmp_path: Path) -> None:
    """With kill -9. Ctrl-C: test_lighthouse_dies.py, and twice: tests/process/launch/job/test_job.py."""
    run_dir = tmp_path / "run"
    with running(torchx_ddp(run_dir, "--steps", "100000", *SMALL), tmp_path / "log", run_dir) as job:
        job.wait_until_training(2)
        assert len(job_processes(run_dir)) >= 5  # lighthouse, two supervisors, two workers at least
        os.kill(job.process.pid, signal.SIGKILL)
        gone(run_dir, 10)
        assert job.wait(10) != 0


def test_bad_data_is_one_sentence_and_no_traceback(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = torchx_ddp(run_dir, "--data", str(tmp_path / "nowhere"), groups=1)
    with running(command, tmp_path / "log", run_dir) as job:
        assert job.wait(60) != 0
        assert "nowhere: no such file, directory or match." in job.output()
        assert "Traceback" not in job.output()
        gone(run_dir, 10)


def test_a_run_is_saved_and_resumed_at_its_step(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    for steps in ("30", "50"):
        run_dir = tmp_path / f"run-{steps}"
        command = torchx_ddp(run_dir, "--steps", steps, "--checkpoint", str(saved), *SMALL)
        with running(command, tmp_path / steps, run_dir) as job:
            assert job.wait(90) == 0, job.output()[-3000:]
    output = (tmp_path / "50").read_text()
    assert "resumed from" in output
    assert "at step 30" in output
    assert re.search(r"step +50 \|", output)
    assert not re.search(r"step +30 \|", output)
