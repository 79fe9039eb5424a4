"""kill -9 of everything that a job has started, supervisors and lighthouse too: the next job goes on from the storage."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.evidence.hsdp_reference import NOISE, compare
from tests.journeys.jobs import SMALL, Job, running
from tests.journeys.test_hsdp import hsdp
from tests.started import ROOT, gone
from tests.util import scaled
from torchft_x.observe.processes import job_processes

pytest.importorskip("s3fs", reason="S3 needs the package s3fs: pip install s3fs")
server = pytest.importorskip(
    "moto.server", reason="a server for S3 needs moto, flask and flask-cors: pip install -e .[dev]"
)
pytestmark = [pytest.mark.timeout(300)]
STEPS = 40


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A bucket of moto's server in this process; the variables that fsspec reads lead there, in all processes of a job."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    urllib.request.urlopen(
        urllib.request.Request(f"http://{host}:{port}/jobs", method="PUT"), timeout=scaled(10)
    ).close()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-access-key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    yield f"s3://jobs/{tmp_path.name} run"  # what is in the server stays there while this process lives
    moto.stop()


def kill_everything(job: Job) -> None:
    while pids := [*([job.process.pid] if job.process.poll() is None else []), *job_processes(job.run_dir)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    gone(job.run_dir, 30)


def test_sharded_groups_go_on_from_s3_with_other_numbers(s3: str, tmp_path: Path) -> None:
    """The losses are those of one process with as many batches a step, before and after."""
    more = ("--checkpoint", s3, "--checkpoint-every", "6", "--steps", str(STEPS), *SMALL)

    def command(name: str, groups: int, workers: int, *args: str) -> list[str]:
        dumps = str(tmp_path / f"{name}-dumps")
        return hsdp(tmp_path / name, workers, groups, "--min-groups", str(groups), "--dump-params", dumps, *args, *more)

    with running(command("first", 1, 2, "--pace", "0.2"), tmp_path / "first.log", tmp_path / "first") as job:
        saved = lambda: [e["step"] for e in job.events() if e["event"] == "checkpoint"]  # noqa: E731
        job.wait_for(lambda: max(saved(), default=0) >= 12, 120, "two checkpoints")
        kill_everything(job)
        at = max(saved())
    with running(command("second", 2, 1), tmp_path / "second.log", tmp_path / "second") as job:
        assert job.wait(150) == 0, job.output()[-3000:]
        assert f"resumed from {s3} at step {at}" in job.output()
        assert "a-secret" not in job.output()
    result = compare(tmp_path / "first-dumps", ["--steps", str(STEPS), *SMALL], later=(tmp_path / "second-dumps", 1))
    assert result.steps == STEPS
    assert max(result.loss_error, result.value_error) < NOISE
    verified = subprocess.run(
        [sys.executable, "-m", "torchft_x", "checkpoint", "verify", s3], capture_output=True, text=True, cwd=ROOT
    )
    assert verified.returncode == 0, verified.stderr
