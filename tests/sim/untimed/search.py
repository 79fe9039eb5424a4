"""Breadth first through all states, so that the first violation found is a shortest one."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tests.sim.untimed import choices
from tests.sim.untimed.model import Action, Global, Model
from tests.sim.untimed.truth import Wrong
from tests.sim.untimed.values import Rules


@dataclass
class Finding:
    """Something wrong, and how to get there."""

    invariant: str
    text: str
    actions: list[Action]

    def __str__(self) -> str:
        return f"{self.invariant} after {len(self.actions)} actions: {self.text}"


@dataclass
class Report:
    """What an exploration came to."""

    rules: Rules
    states: int = 0
    transitions: int = 0
    depth: int = 0  # of the deepest level that was begun
    complete: bool = False
    well: int = 0  # states in which all is well
    cut_off: int = 0  # states beyond which the model does not look
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    actors: str = ""

    def __str__(self) -> str:
        how = "complete" if self.complete else f"stopped at depth {self.depth}"
        rate = self.states / self.seconds if self.seconds else 0.0
        lines = [
            f"{how}: {self.states} states, {self.transitions} transitions, depth {self.depth}, {self.seconds:.1f} s, "
            f"{rate:.0f} states/s; {self.well} well, {self.cut_off} at the end of the world; {self.actors}"
        ]
        return "\n".join([*lines, *(str(f) for f in self.findings)])


class Search:
    """See the module. `explore` may be called once."""

    def __init__(self, rules: Rules) -> None:
        self.model = Model(rules)
        self.report = Report(rules)
        self._seen: dict[int, int] = {}  # hash of a state -> its number
        self._parents = array("q")
        self._how: list[Action | None] = []  # the action that led to a state first
        self._actions: dict[Action, Action] = {}  # one object per action
        self._into: array[int] = array("q")  # transitions, as pairs of state numbers
        self._goals: set[int] = set()
        self._watch: Collection[str] = ()  # invariants; empty: all

    def explore(
        self, *, seconds: float, most: int = 1, watch: Collection[str] = (),
        progress: Callable[[Report], None] | None = None,
    ) -> Report:  # fmt: skip
        """Until everything is seen, `most` violations are found, or time is up. `watch`: these invariants only."""
        began = time.monotonic()
        self._watch = watch
        live = not watch or "L1" in watch
        level = [(self._number(self.model.initial(), -1, None), self.model.initial())]
        report = self.report
        while level and len(report.findings) < most:
            following: list[tuple[int, Global]] = []
            for done, (number, state) in enumerate(level):
                if done % 256 == 0 and time.monotonic() - began > seconds:
                    break
                self._expand(number, state, following, live)
                if len(report.findings) >= most:
                    break
            else:
                level = following
                report.depth += 1
                report.seconds = time.monotonic() - began
                if progress is not None:
                    progress(report)
                continue
            break
        report.complete = not level
        if report.complete and live:
            self._dead_ends()
        report.seconds = time.monotonic() - began
        t = self.model.tables
        report.actors = f"{len(t.lives)} states of groups, {len(t.lights)} of lighthouses"
        return report

    def _number(self, state: Global, parent: int, action: Action | None) -> int:
        """Of a new state; -1 - number of one that is known."""
        found = self._seen.setdefault(hash(state), len(self._parents))
        if found < len(self._parents):
            return -1 - found
        self._parents.append(parent)
        self._how.append(action if action is None else self._actions.setdefault(action, action))
        self.report.states += 1
        return found

    def _expand(self, number: int, state: Global, following: list[tuple[int, Global]], live: bool) -> None:
        model, report = self.model, self.report
        if choices.is_well(model, state):
            report.well += 1
            self._goals.add(number)
            return
        if choices.is_cut_off(model, state):
            report.cut_off += 1
            self._goals.add(number)
        actions = choices.steps(model, state)
        actions = (actions or choices.patience(model, state)) + choices.faults(model, state)
        for action in actions:
            report.transitions += 1
            after, wrong = model.after(state, action)
            if wrong and self._watch:
                wrong = [w for w in wrong if w[0] in self._watch]
            if wrong:
                self._found(number, action, wrong)
                continue
            reached = self._number(after, number, action)
            if reached >= 0:
                following.append((reached, after))
            if live:
                self._into.extend((number, reached if reached >= 0 else -1 - reached))

    def _found(self, number: int, last: Action, wrong: list[Wrong]) -> None:
        for invariant, text in wrong:
            self.report.findings.append(Finding(invariant, text, [*self.path(number), last]))

    def path(self, number: int) -> list[Action]:
        """The actions that lead to a state."""
        actions: list[Action] = []
        while number >= 0:
            action = self._how[number]
            if action is not None:
                actions.append(action)
            number = self._parents[number]
        return actions[::-1]

    def _dead_ends(self) -> None:
        """L1: from every state all can become well again. Only where everything was seen."""
        before: dict[int, list[int]] = {}
        into = self._into
        for i in range(0, len(into), 2):
            before.setdefault(into[i + 1], []).append(into[i])
        alive = set(self._goals)
        todo = list(alive)
        while todo:
            for number in before.get(todo.pop(), ()):
                if number not in alive:
                    alive.add(number)
                    todo.append(number)
        for number in range(len(self._parents)):
            if number not in alive:
                self.report.findings.append(Finding("L1", "nothing can become well from here", self.path(number)))
                return
