"""observe/run: a run in one line."""

from __future__ import annotations

from pathlib import Path

from tests.unit.observe.written import Job, Log, killed
from torchft_x.observe.console import Story
from torchft_x.observe.run import summary


def seen(steps: int) -> Story:
    """Return what a process has seen that knows of so many commits."""
    story = Story("0")
    story.sentences({"event": "commit", "mono": 1.0, "step": steps - 1})
    return story


def test_the_summary_of_a_run(tmp_path: Path) -> None:
    killed(tmp_path)
    assert summary(seen(121), tmp_path) == "done: 121 steps committed, 1 restart, 0 steps dropped, 0.10 s lost"


def test_drops_and_lost_steps_count_once_for_all_groups(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.steps(0, 20, 2.1, 100, job.names)
    for g in job.names:
        job.trainers[g].tell(4.2, "drop", step=21, quorum=100)
    job.lighthouse.tell(4.3, "new_lineage", quorum=101, steps=3, reason="nobody holds steps 18 to 20")
    found = summary(seen(21), tmp_path)
    assert found.endswith(", 1 step dropped, 0.00 s lost; 3 steps lost with all groups that held them")


def test_restarts_are_counted_from_the_runs_first_attempt_of_a_group(tmp_path: Path) -> None:
    """The lighthouse knows the groups from a job before."""
    job = killed(tmp_path)
    for path in [log.path for log in job.supervisors.values()] + list((tmp_path / "events").glob("trainer-*")):
        path.write_text(
            path.read_text().replace('"attempt": 1', '"attempt": 5').replace('"attempt": 0', '"attempt": 4')
        )
    assert ", 1 restart, " in summary(seen(121), tmp_path)


def test_a_summary_without_a_run_directory_is_the_story() -> None:
    assert summary(seen(1), None) == "done: 1 step committed, 0 restarts, 0 steps dropped, 0.00 s lost"


def test_a_log_that_was_cut_short_gives_no_wrong_totals(tmp_path: Path) -> None:
    log = Log(tmp_path, "trainer", 20, group="0", rank=0, attempt=0, replica_id="0:a")
    for step in range(3):
        log.tell(1.0 + step, "commit", step=step, quorum=100, participants=1)
    assert summary(seen(3), tmp_path).startswith("done: 3 steps committed, 0 restarts, ")
    assert summary(seen(10), tmp_path) == (  # it has seen more than is written
        f"done: 10 steps committed; restarts and drops are not known: the event log in {tmp_path / 'events'} could not be "
        "written to its end (disk full?)"
    )
    Path(f"{log.path}.incomplete").touch()
    assert f"not known: {log.path} could not be" in summary(seen(3), tmp_path)
