"""A job of real processes, of which one computes wrong gradients."""

from __future__ import annotations

from pathlib import Path

from tests.events import commits
from tests.journeys.jobs import running, torchx_ddp
from tests.started import gone


def test_a_group_that_computes_wrong_gradients_is_given_up_and_the_others_train_on(tmp_path: Path) -> None:
    run_dir, enough = tmp_path / "run", tmp_path / "enough"
    command = torchx_ddp(run_dir, groups=3, script="tests/extended/jobs/faulty_train.py")
    with running(command, tmp_path / "log", run_dir, FAULTY_GROUP="1", ENOUGH=str(enough)) as job:
        job.wait_for(lambda: any(e["event"] == "exit" and e.get("code") == 71 for e in job.events()), 120, "code 71")
        reached = len(commits(job.events()))
        job.wait_for(lambda: len(commits(job.events())) > reached + 20, 60, "the others train on")
        enough.touch()
        assert job.wait(60) == 1, job.output()
        gone(run_dir, 20)
    said, events = job.output(), job.events()
    exits = {(e["group"], e["attempt"]): e["code"] for e in events if e["event"] == "exit" and "attempt" in e}
    assert exits == {("0", 0): 0, ("1", 0): 71, ("2", 0): 0}, said
    assert "computes wrong gradients: that of slot" in said
    assert "2 of 3 groups finished, but group 1 gave up on " in said
    assert "its host computes wrong results" in said
    assert [e["participants"] for e in commits(events, group="0")][-10:] == [2] * 10
