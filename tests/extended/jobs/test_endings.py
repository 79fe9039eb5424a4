"""Jobs that come to their end, or should: as a user starts them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.journeys.jobs import BIN, ROOT, SMALL, gone, running, torchx_ddp
from tests.journeys.test_endings import (
    write,
)
from torchft_x import env
from torchft_x.observe.report import commits, workers
from torchft_x.timing import TIMING
from torchft_x.transfer.durable.catalog import newest
from torchft_x.transfer.durable.store import Store

pytestmark = [pytest.mark.timeout(300)]


def test_a_final_checkpoint_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    run_dir, log = tmp_path / "run", tmp_path / "log"
    where, end = tmp_path / "saved", tmp_path / "end"
    command = torchx_ddp(run_dir, *SMALL, "--steps", "100000", "--until", str(end), "--pace", "0.02")
    command += ["--checkpoint", str(where), "--checkpoint-every", "5"]
    with running(command, log, run_dir) as job:
        job.wait_for(lambda: [e for e in job.events() if e["event"] == "checkpoint"], 60, "a checkpoint")
        where.rename(tmp_path / "moved")
        where.write_text("in the way")
        job.wait_for(lambda: "training goes on" in job.output(), 60, "a save that fails")
        write(end, str(max(int(e["step"]) for e in commits(job.events())) + 50))
        assert job.wait(120) == 1, job.output()
        said = job.output()
    assert said.count("training goes on") == 1
    assert f"the last checkpoint was not saved: checkpoint {where}: " in said
    assert "1 of 2 groups finished, but group 0 gave up on" in said
    assert "restart 1 of" not in said  # it would train all again for nothing


def test_what_fails_at_every_start_ends_the_job_at_once(tmp_path: Path) -> None:
    run_dir, log, script = tmp_path / "run", tmp_path / "log", tmp_path / "script.py"
    script.write_text("import nowhere_to_be_found")
    with running(torchx_ddp(run_dir, script=str(script)), log, run_dir) as job:
        assert job.wait(60) == 1, job.output()
        said = job.output()
    assert "before it made a Manager: ModuleNotFoundError: No module named 'nowhere_to_be_found'" in said
    assert said.count("Traceback") <= 2  # of each group at most one
    assert "restart 1 of" not in said
    assert not (run_dir / "dumps").exists()
    assert workers(job.events()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_is_told_to_stop_saves_its_last_step(tmp_path: Path, workers: int) -> None:
    """SIGTERM to all supervisors, as a time limit sends it: the checkpoint is the one of that moment."""
    run_dir, url, size = tmp_path / "run", str(tmp_path / "saved"), ("--steps", "100000", "--pace", "0.02", *SMALL)
    script = "scripts/train_ddp.py" if workers == 1 else "scripts/train_hsdp.py"
    command = torchx_ddp(run_dir, *size, "--checkpoint", url, "--checkpoint-every", "50000", script=script)
    command[command.index("--replicas") : command.index("--replicas")] = ["--workers_per_replica", str(workers)]
    command[command.index("./components.py:ddp")] = f"./components.py:{'ddp' if workers == 1 else 'hsdp'}"
    with running(command, tmp_path / "log", run_dir, **{env.NOTICE: "120"}) as job:  # enough on any machine
        job.wait_until_training(2)
        for pid in {e["pid"] for e in job.events() if e["role"] == "supervisor" and e["event"] == "start"}:
            os.kill(pid, signal.SIGTERM)
        job.wait(60)
        gone(run_dir, 20)
        reached = max(e["step"] for e in commits(job.events())) + 1
    found = newest(Store(url))
    assert found is not None, job.output()
    assert reached - 1 <= found.step <= reached


SLOW = """
import sys, time
sys.path.insert(0, {scripts!r})
import fsspec
from fsspec.implementations.local import LocalFileSystem
import train_ddp

class Slow(LocalFileSystem):
    protocol = ("slow",)

    def open(self, path, mode="rb", **kwargs):
        if mode == "wb" and path.endswith(".data"):
            time.sleep({seconds})
        return super().open(path, mode, **kwargs)

fsspec.register_implementation("slow", Slow)
sys.exit(train_ddp.exit_code(lambda: train_ddp.train(train_ddp.parse_args())))
"""


@pytest.mark.parametrize("notice", [12 * TIMING.stop_grace, 0.6 * TIMING.stop_grace], ids=["long", "short"])
def test_a_slow_save_has_the_time_that_the_sender_gives(notice: float, tmp_path: Path) -> None:
    """SIGTERM to a supervisor; the save takes longer than the grace of whoever doesn't save."""
    run_dir, address, script, url = tmp_path / "run", tmp_path / "address", tmp_path / "slow.py", tmp_path / "saved"
    script.write_text(SLOW.format(scripts=str(ROOT / "scripts"), seconds=1.6 * TIMING.stop_grace))
    python = str(BIN / "python")
    lighthouse = [python, "-m", "torchft_x", "lighthouse", "--min_replicas", "1", "--bind", "[::]:0"]
    supervise = [
        python,
        "-m",
        "torchft_x",
        "supervise",
        "--group",
        "0",
        "--groups",
        "1",
        "--run_dir",
        str(run_dir),
        "--",
    ]
    supervise += [str(script), "--steps", "100000", "--pace", "0.02", *SMALL]
    supervise += ["--checkpoint", f"slow://{url}", "--checkpoint-every", "50000"]
    mark = {env.RUN_DIR: str(run_dir)}
    with running([*lighthouse, "--address_file", str(address)], tmp_path / "lighthouse", run_dir, **mark) as service:
        service.wait_for(address.exists, 15, "the lighthouse serves")
        where = {**mark, env.LIGHTHOUSE: address.read_text().strip(), env.NOTICE: str(notice)}
        with running(supervise, tmp_path / "log", run_dir, **where) as job:
            job.wait_until_training(1)
            os.kill(job.process.pid, signal.SIGTERM)
            job.wait(8 * TIMING.stop_grace)
            reached, said = max(e["step"] for e in commits(job.events())) + 1, job.output()
    found = newest(Store(str(url)))
    if notice > TIMING.stop_grace:
        assert found is not None
        assert reached - 1 <= found.step <= reached
        assert "pause" not in said
    else:
        assert found is None
        assert (
            f"worker 0 is still in a pause that it has announced (it saves its last step?) after {TIMING.stop_grace:g} s"
            in said
        )
