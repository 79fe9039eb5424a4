"""observe/run/slow.py: for which steps a group was slower than the others."""

from __future__ import annotations

from pathlib import Path

from tests.unit.observe.run.test_fold import the
from tests.unit.observe.written import Job
from torchft_x.observe.drawing.text import summary
from torchft_x.observe.run.values import Run, Slow


def written(tmp_path: Path, *own: dict[str, float], steps: int = 50) -> Run:
    """Return a run of so many steps for each of `own`, the seconds of the groups' own parts of a step."""
    job = Job(tmp_path, tuple(own[0]))
    job.begin()
    step = 0
    for seconds in own:
        for _ in range(steps):
            for name, part in seconds.items():
                at = 3.0 + step + 0.1 * int(name)
                job.trainers[name].tell(at, "commit", step=step, quorum=100, participants=2, duration=0.9, own=part)
            step += 1
    return the(tmp_path)


def test_a_slow_span_is_named_once(tmp_path: Path) -> None:
    alike, slow, nearly = {"0": 0.1, "1": 0.1}, {"0": 0.1, "1": 0.15}, {"0": 0.1, "1": 0.12}
    run = written(tmp_path, alike, nearly, slow, nearly, slow, alike, nearly)
    assert run.slow == (Slow(group="1", begin=100, end=249, slower=0.15 / 0.1 - 1),)
    said = "Group 1 in steps 100 to 249: its own part of a step takes 50 % longer than that of the others."
    assert said in summary(run, 0.0)


def test_a_few_long_steps_make_no_group_slow(tmp_path: Path) -> None:
    """A compile, a checkpoint."""
    assert written(tmp_path, {"0": 0.1, "1": 9.0}, {"0": 0.1, "1": 0.1}, {"0": 0.1, "1": 0.1}, steps=24).slow == ()


def test_logs_without_own_parts_name_nobody(tmp_path: Path) -> None:
    assert written(tmp_path, {"0": 0.0, "1": 0.0}, {"0": 0.0, "1": 0.1}).slow == ()
