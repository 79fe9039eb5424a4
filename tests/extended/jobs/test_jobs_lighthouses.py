"""One command, a job with two lighthouses of its own (`--lighthouses 2`): the first is lost for good, the job goes on to its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.extended.jobs.test_nodes import torchx_nodes
from tests.journeys.jobs import SMALL, Job, gone, running, torchx_ddp
from torchft_x.launch.process import process_tree
from torchft_x.observe.processes import job_processes
from torchft_x.observe.report import workers

pytestmark = [pytest.mark.timeout(400)]


def with_two(words: list[str]) -> list[str]:
    cut = words.index("--script")
    return [*words[:cut], "--lighthouses", "2", *words[cut:]]


def command(run_dir: Path, steps: int) -> list[str]:
    return with_two(torchx_ddp(run_dir, "--steps", str(steps), "--pace", "0.04", *SMALL))


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


def steps_of(job: Job, group: str) -> list[int]:
    return [int(e["step"]) for e in job.events() if e["event"] == "commit" and e.get("group") == group]


def test_the_lighthouse_that_serves_is_lost_for_good_and_the_job_goes_on_to_its_end(tmp_path: Path) -> None:
    run_dir, steps = tmp_path / "run", 700
    with running(command(run_dir, steps), tmp_path / "log", run_dir) as job:
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
        assert steps_of(job, group) == list(range(steps))


def test_groups_over_two_nodes_go_on_and_are_begun_again_at_the_other_lighthouse(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    words = with_two(torchx_nodes(run_dir, "--steps", "900", "--pace", "0.04", *SMALL))
    with running(words, tmp_path / "log", run_dir) as job:
        job.wait_until_training(2, 120)
        process_tree.send(role(run_dir, holder(run_dir)), signal.SIGKILL)
        job.wait_for(lambda: job.output().count(" is there.") >= 2, 90, "two groups to come over")
        process_tree.send([job.worker("1")], signal.SIGKILL)  # the new one begins the next life, on both nodes
        job.wait_for(lambda: _lives(job) >= {("1", 0, 1), ("1", 1, 1)}, 90, "its next life")
        code = job.wait(200)
        assert "All 2 groups finished." in job.output()
        gone(run_dir, 10)
    assert code == 1


def _lives(job: Job) -> set[tuple[str, int, int]]:
    return {(w.group, w.rank, w.attempt) for w in workers(job.events())}


def test_two_lighthouses_end_with_their_job(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(command(run_dir, 20), tmp_path / "log", run_dir) as job:
        assert job.wait(120) == 0, job.output()
        assert job.output().count("All 2 groups finished.") == 1
        assert "The job is over: another lighthouse has ended with code 0." in job.output()
        gone(run_dir, 10)
