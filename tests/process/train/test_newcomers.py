"""What a group that comes while others train costs these: nothing for its first step, and no more than it copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.torch.train.jobs import (
    Group,
    check_equal,
    finish,
    lighthouse,
    running,
    wait_steps,
)
from tests.util import wait_for

# --- real processes ---------------------------------------------------------------------------------------------------


class Job:
    """Groups at the defaults, of which the last is killed; `held` makes it, or the first, stand still from then on."""

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups
        self.dropped = 0  # steps of the others, before the last group was killed
        *self.others, self.newcomer = groups

    def comes_back(self, held: str, at: Group) -> Callable[[], None]:
        """Kill the last group and start it again. Returns when it stands where it is held; what is returned frees it."""
        wait_steps(self.groups, 10, "all groups to train together")
        self.dropped = self._drops()
        self.newcomer.kill()
        self.go_on(5)
        at.file(held).touch()
        self.newcomer.start()
        wait_for(lambda: at.lines(held), 60, "it to stand still")
        return at.file(held).unlink

    def go_on(self, steps: int) -> None:
        """The others commit so many steps more."""
        wait_steps(self.others, steps, "the others to go on")

    def end(self) -> None:
        """The last group trains with the others, which have dropped no step, and no parameter differs."""
        there = max(g.last_step() for g in self.groups)
        wait_for(lambda: self.newcomer.last_step() > there + 5, 60, "the newcomer to train with the others")
        last = finish(self.groups, 10)
        assert self._drops() == self.dropped
        check_equal(self.groups, last)

    def _drops(self) -> int:
        return sum(len(g.lines("drop")) for g in self.others)


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    with (
        lighthouse() as address,
        running(request.param, address, tmp_path, "tests.process.train.newcomer_worker") as groups,
    ):
        yield Job(groups)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("job", "held"), [(3, "fetch")], indirect=["job"])
def test_a_heal_that_stands_still_is_not_waited_for(job: Job, held: str) -> None:
    """Because of who copies, or of who is copied from. Nobody ends, and who copies is back when it moves again."""
    release = job.comes_back(held, job.newcomer if held == "fetch" else job.groups[0])
    job.go_on(50)
    release()
    job.end()
