"""Play a scenario on a stage, which is a simulated or a real cluster, and judge the record of it.

Both stages keep the same `Record` of the groups' actions. Moments and expectations are evaluated on it alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from tests.scenario.values import (
    Action,
    AtStep,
    Gapless,
    Later,
    LongestStall,
    Moment,
    MostAttempts,
    MostDropped,
    Scenario,
    Together,
    When,
    Wish,
)

PATIENCE = 60.0
"""Longest wait in seconds for one moment of the story, and for the end of the run."""


@dataclass(frozen=True)
class Commit:
    """A group's commit of its `step`-th step (counted from 1)."""

    t: float
    group: str
    step: int
    quorum: int
    participants: int  # number of groups whose gradients were in it


@dataclass
class Record:
    """Actions of the groups of a run, in order of time."""

    commits: list[Commit] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # group -> number of its starts
    dropped: set[tuple[int, int]] = field(default_factory=set)  # (step, quorum) dropped by some group
    step: int = 0  # highest committed step of the job
    newest: dict[str, Commit] = field(default_factory=dict)  # newest commit, by group

    def committed(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.newest[commit.group] = commit
        self.step = max(self.step, commit.step)

    def together(self, groups: Collection[str], since: float) -> bool:
        """Return whether the newest commit of each of these groups is one of exactly these, and later than `since`."""
        commits = [self.newest[g] for g in groups if g in self.newest]
        if len(commits) < len(groups):
            return False
        return all(c.t > since and c.participants == len(groups) for c in commits)


class Stage(Protocol):
    """Cluster on which a scenario is played."""

    record: Record

    def now(self) -> float: ...

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Run until the condition holds. Raise with `what` if that takes longer than `seconds`."""

    def does(self, group: str, what: str) -> Callable[[], bool]:
        """Return a function that returns whether the group has begun an action since this call.

        `what`: "heals" or "reduces".
        """

    def act(self, action: Action) -> None: ...

    def busy(self) -> bool:
        """Return whether a temporary action has yet to end: a pause, a cut, a lost machine."""


def play(scenario: Scenario, stage: Stage) -> None:
    """Play the whole story, until all expected groups train together again and have come far enough."""
    last = stage.now()
    for done, deed in enumerate(scenario.story):
        ready = _condition(stage, deed.moment, last, scenario.wanted(done))
        seconds = PATIENCE + (deed.moment.seconds if isinstance(deed.moment, Later) else 0.0)
        stage.until(ready, seconds, f"{deed.moment}, to do {deed.action}")
        stage.act(deed.action)
        last = stage.now()
    stage.until(lambda: not stage.busy(), PATIENCE, "the end of the last pause or cut")
    calm, wanted = stage.now(), scenario.wanted(len(scenario.story))
    stage.until(
        lambda: (
            stage.record.together(wanted, calm) and all(stage.record.newest[g].step >= scenario.steps for g in wanted)
        ),
        PATIENCE,
        f"{', '.join(wanted)} train together at step {scenario.steps}",
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
    """Return the expectations that do not hold, one sentence each. `factor` stretches times."""
    verdicts = [(wish, _verdict(wish, record, factor)) for wish in scenario.expectations]
    return [f"{scenario.name}: expected {wish}, but {verdict}." for wish, verdict in verdicts if verdict]


def _verdict(wish: Wish, record: Record, factor: float) -> str:
    """Return a clause that contradicts the wish, or '' if it holds."""
    if isinstance(wish, Gapless):
        steps = [c.step for c in record.commits if c.group == wish.group]
        gaps = [f"{a} to {b}" for a, b in pairwise(steps) if b != a + 1]
        return f"{wish.group} went from step {', from '.join(gaps)}" if gaps else ""
    if isinstance(wish, MostAttempts):
        attempts = record.attempts[wish.group]
        return f"it was started {attempts} times" if attempts > wish.attempts else ""
    if isinstance(wish, MostDropped):
        steps = sorted(step for step, _ in record.dropped)
        return f"{len(steps)} were: {', '.join(map(str, steps))}" if len(steps) > wish.steps else ""
    assert isinstance(wish, LongestStall)
    stall, step = longest_stall(record)
    return f"before step {step} nothing went on for {stall:.2f} s" if stall > wish.seconds * factor else ""


def longest_stall(record: Record) -> tuple[float, int]:
    """Return the longest time between two steps of the job, and the step that ended it."""
    first: dict[int, float] = {}
    for c in record.commits:
        first.setdefault(c.step, c.t)
    gaps = [(first[b] - first[a], b) for a, b in pairwise(sorted(first, key=first.__getitem__))]
    return max(gaps, default=(0.0, 0))
