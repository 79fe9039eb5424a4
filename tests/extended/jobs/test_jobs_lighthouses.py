"""One command, a job with two lighthouses of its own (`--lighthouses 2`): the first is lost for good, the job goes on to its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.journeys.jobs import SMALL, gone, running, torchx_ddp
from torchft_x.launch.process import process_tree
from torchft_x.observe.processes import job_processes

pytestmark = [pytest.mark.timeout(400)]


def role(run_dir: Path, place: int) -> list[int]:
    """The processes of a lighthouse: the role's own, and those it has started."""
    flags = f"--place\0{place}\0".encode()
    roles = [pid for pid in job_processes(run_dir) if flags in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return [*roles, *(pid for parent in roles for pid in process_tree.descendants(parent))]


def holder(run_dir: Path) -> int:
    """The place of the lighthouse that serves."""
    (lease,) = (run_dir / "lighthouses" / "lease").iterdir()
    served = lease.read_text().strip()
    (place,) = (p for p in (0, 1) if (run_dir / "lighthouses" / str(p)).read_text().strip() == served)
    return place


def test_the_lighthouse_that_serves_is_lost_for_good_and_the_job_goes_on_to_its_end(tmp_path: Path) -> None:
    run_dir, steps = tmp_path / "run", 700
    command = torchx_ddp(run_dir, "--steps", str(steps), "--pace", "0.04", *SMALL)
    command[command.index("--script") : command.index("--script")] = ["--lighthouses", "2"]
    with running(command, tmp_path / "log", run_dir) as job:
        job.wait_until_training(2, 90)
        place = holder(run_dir)
        process_tree.send(role(run_dir, place), signal.SIGKILL)
        code = job.wait(150)
        said = job.output()
        gone(run_dir, 10)
    assert code == 1, "a process of the job was lost: that needs a look"
    assert f"The lighthouse at {(run_dir / 'lighthouses' / str(1 - place)).read_text().strip()} is there" in said
    assert "All 2 groups finished." in said
    lives = [e["group"] for e in job.events() if e.get("role") == "supervisor" and e["event"] == "start"]
    assert sorted(lives) == ["0", "1"], "a trainer has died"
    for group in "01":
        made = [int(e["step"]) for e in job.events() if e["event"] == "commit" and e.get("group") == group]
        assert made == list(range(steps))
