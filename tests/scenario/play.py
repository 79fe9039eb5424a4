"""Plays a scenario on a stage, which is a simulated cluster or a real one, and judges what was seen.

Both stages keep the same `LastQuorumFile` of what the groups did; moments and expectations look at nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from tests.scenario.values import (
    Action,
    AllAt,
    AtStep,
    Expectation,
    Gapless,
    Later,
    LongestStall,
    Moment,
    MostDropped,
    MostLives,
    Scenario,
    Together,
    When,
)

PATIENCE = 60.0
"""Seconds one moment of the story may be waited for, and the end of it all."""


@dataclass(frozen=True)
class Commit:
    """A group has committed its `step`-th step (they count from 1)."""

    t: float
    group: str
    step: int
    quorum: int
    participants: int  # groups whose gradients were in it


@dataclass
class Record:
    """What the groups of a run did, in order of time."""

    commits: list[Commit] = field(default_factory=list)
    lives: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # group -> how often it was started
    dropped: set[tuple[int, int]] = field(default_factory=set)  # (step, quorum): dropped by somebody
    step: int = 0  # of the job: the highest that was committed
    newest: dict[str, Commit] = field(default_factory=dict)  # by group

    def committed(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.newest[commit.group] = commit
        self.step = max(self.step, commit.step)

    def together(self, groups: Collection[str], since: float) -> bool:
        """Is the newest commit of each of these groups one of all of them and nobody else, and later than `since`?"""
        commits = [self.newest[g] for g in groups if g in self.newest]
        if len(commits) < len(groups):
            return False
        return all(c.t > since and c.participants == len(groups) for c in commits)


class Stage(Protocol):
    """Where a scenario is played."""

    record: Record

    def now(self) -> float: ...

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Let it run until the condition holds. Raises with `what` when that takes longer than `seconds`."""

    def does(self, group: str, what: str) -> Callable[[], bool]:
        """Whether the group has, since this call, begun to heal ("heals") or to reduce ("reduces")."""

    def act(self, action: Action) -> None: ...

    def busy(self) -> bool:
        """Whether something that was begun has yet to end: a pause, a cut, a lost machine."""


def play(scenario: Scenario, stage: Stage) -> None:
    """The whole story, until all groups that should be there train together again and have come far enough."""
    last = stage.now()
    for done, deed in enumerate(scenario.story):
        ready = _condition(stage, deed.moment, last, scenario.wanted(done))
        seconds = PATIENCE + (deed.moment.seconds if isinstance(deed.moment, Later) else 0.0)
        stage.until(ready, seconds, f"line {deed.line} ({deed.text})")
        stage.act(deed.action)
        last = stage.now()
    stage.until(lambda: not stage.busy(), PATIENCE, "the end of the last pause or cut")
    calm, wanted = stage.now(), scenario.wanted(len(scenario.story))
    ends = [e.wish.step for e in scenario.expectations if isinstance(e.wish, AllAt)]
    far = max([scenario.steps, *ends])
    stage.until(
        lambda: stage.record.together(wanted, calm) and all(stage.record.newest[g].step >= far for g in wanted),
        PATIENCE,
        f"{', '.join(wanted)} train together at step {far}",
    )


def _condition(stage: Stage, moment: Moment, last: float, wanted: Collection[str]) -> Callable[[], bool]:
    if isinstance(moment, AtStep):
        return lambda: stage.record.step >= moment.step
    if isinstance(moment, Later):
        return lambda: stage.now() >= last + moment.seconds
    if isinstance(moment, When):
        return stage.does(moment.group, moment.does)
    assert isinstance(moment, Together)
    return lambda: stage.record.together(wanted, last)


def judge(scenario: Scenario, record: Record, *, factor: float = 1.0) -> list[str]:
    """What was expected and is not so, one sentence each. `factor` stretches times."""
    wanted = scenario.wanted(len(scenario.story))
    verdicts = [(e, _verdict(e, record, wanted, factor)) for e in scenario.expectations]
    return [f"{scenario.name}, line {e.line}: expected {e.text}, but {v}." for e, v in verdicts if v]


def _verdict(expectation: Expectation, record: Record, wanted: Collection[str], factor: float) -> str:
    """What speaks against it, a clause; '' if it holds."""
    wish = expectation.wish
    if isinstance(wish, AllAt):
        behind = {g: record.newest[g].step if g in record.newest else 0 for g in wanted}
        late = [f"{g} is at step {step}" for g, step in behind.items() if step < wish.step]
        return ", ".join(late)
    if isinstance(wish, Gapless):
        steps = [c.step for c in record.commits if c.group == wish.group]
        gaps = [f"{a} to {b}" for a, b in pairwise(steps) if b != a + 1]
        return f"{wish.group} went from step {', from '.join(gaps)}" if gaps else ""
    if isinstance(wish, MostLives):
        lives = record.lives[wish.group]
        return f"it was started {lives} times" if lives > wish.lives else ""
    if isinstance(wish, MostDropped):
        steps = sorted(step for step, _ in record.dropped)
        return f"{len(steps)} were: {', '.join(map(str, steps))}" if len(steps) > wish.steps else ""
    assert isinstance(wish, LongestStall)
    stall, step = longest_stall(record)
    return f"before step {step} nothing went on for {stall:.2f} s" if stall > wish.seconds * factor else ""


def longest_stall(record: Record) -> tuple[float, int]:
    """The longest time between two steps of the job, and the step that ended it."""
    first: dict[int, float] = {}
    for c in record.commits:
        first.setdefault(c.step, c.t)
    gaps = [(first[b] - first[a], b) for a, b in pairwise(sorted(first, key=first.__getitem__))]
    return max(gaps, default=(0.0, 0))
