"""One command, a job with two lighthouses of its own (`--lighthouses 2`): the first is lost for good, the job goes on to its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.jobs import SMALL, Job, gone, running, torchx_ddp
from torchft_x.launch.process import process_tree
from torchft_x.observe.processes import job_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def command(run_dir: Path, steps: int) -> list[str]:
    words = torchx_ddp(run_dir, "--steps", str(steps), "--pace", "0.04", *SMALL)
    cut = words.index("--")
    return [*words[:cut], "--lighthouses", "2", *words[cut:]]


def role(run_dir: Path, place: int) -> list[int]:
    """The processes of a lighthouse: the role's own and the server."""
    flags = f"--place\0{place}\0".encode()
    return [pid for pid in job_processes(run_dir) if flags in Path(f"/proc/{pid}/cmdline").read_bytes()]


def steps_of(job: Job, group: str) -> list[int]:
    return [int(e["step"]) for e in job.events() if e["event"] == "commit" and e.get("group") == group]


def test_the_first_lighthouse_is_lost_for_good_and_the_job_goes_on_to_its_end(tmp_path: Path) -> None:
    run_dir, steps = tmp_path / "run", 500
    with running(command(run_dir, steps), tmp_path / "log", run_dir) as job:
        job.wait_until_training(2, 90)
        assert "begins here" in job.output()
        process_tree.send(role(run_dir, 0), signal.SIGKILL)
        code = job.wait(120)
        said = job.output()
        gone(run_dir, 10)
    assert code == 1, "a process of the job was lost: that needs a look"
    assert f"The lighthouse at {(run_dir / 'lighthouses' / '1').read_text().strip()} is there" in said
    assert "All 2 groups finished." in said
    lives = [e["group"] for e in job.events() if e.get("role") == "supervisor" and e["event"] == "start"]
    assert sorted(lives) == ["0", "1"], "a trainer has died"
    for group in "01":
        assert steps_of(job, group) == list(range(steps))


def test_two_lighthouses_end_with_their_job(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(command(run_dir, 20), tmp_path / "log", run_dir) as job:
        assert job.wait(120) == 0, job.output()
        assert job.output().count("All 2 groups finished.") == 2
        gone(run_dir, 10)
