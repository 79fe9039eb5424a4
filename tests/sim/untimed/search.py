"""Breadth first through all states, so that the first violation found is a shortest one."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tests.sim.untimed import choices
from tests.sim.untimed.model import Action, Global, Model
from tests.sim.untimed.truth import Wrong
from tests.sim.untimed.values import Rules

_SAMPLES = 1000  # states of the frontier that are continued
_PATIENCE = 400  # steps after which all must be well


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
    continued: int = 0  # states of the frontier from which all became well
    seconds: float = 0.0  # of the processor
    findings: list[Finding] = field(default_factory=list)
    actors: str = ""

    def __str__(self) -> str:
        how = "complete" if self.complete else f"stopped at depth {self.depth}, {self.continued} states continued"
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
        self._began = 0.0  # processor time
        self._frontier: list[tuple[int, Global]] = []  # what was not looked into when time was up

    def explore(
        self, *, seconds: float, most: int = 1, watch: Collection[str] = (),
        progress: Callable[[Report], None] | None = None,
    ) -> Report:  # fmt: skip
        """Until everything is seen, `most` violations are found, or time is up. `watch`: these invariants only.

        Time is that of the processor: what else the machine does is no matter.
        """
        self._watch, self._began = watch, time.process_time()
        gc.disable()  # millions of small values without a cycle
        try:
            complete = self._levels(seconds, most, progress)
        finally:
            gc.enable()
        report = self.report
        report.complete = complete
        if self._live and not report.findings:
            self._dead_ends() if complete else self._greedy()
        report.seconds = time.process_time() - self._began
        t = self.model.tables
        report.actors = f"{len(t.lives)} states of groups, {len(t.lights)} of lighthouses"
        return report

    @property
    def _live(self) -> bool:
        """Whether to look for dead ends."""
        return not self._watch or "L1" in self._watch

    def _levels(self, seconds: float, most: int, progress: Callable[[Report], None] | None) -> bool:
        """Level by level. True: nothing is left to be seen."""
        report = self.report
        level = [(self._number(self.model.initial(), -1, None), self.model.initial())]
        while level:
            following: list[tuple[int, Global]] = []
            for done, (number, state) in enumerate(level):
                self._expand(number, state, following)
                late = done % 256 == 0 and time.process_time() - self._began > seconds
                if late or len(report.findings) >= most:
                    self._frontier = [*level[done + 1 :], *following]
                    return False
            level = following
            report.depth += 1
            report.seconds = time.process_time() - self._began
            if progress is not None:
                progress(report)
        return True

    def _number(self, state: Global, parent: int, action: Action | None) -> int:
        """Of a new state; -1 - number of one that is known."""
        found = self._seen.setdefault(hash(state), len(self._parents))
        if found < len(self._parents):
            return -1 - found
        self._parents.append(parent)
        self._how.append(action if action is None else self._actions.setdefault(action, action))
        self.report.states += 1
        return found

    def _expand(self, number: int, state: Global, following: list[tuple[int, Global]]) -> None:
        model, report = self.model, self.report
        if choices.is_well(model, state):
            report.well += 1
            self._goals.add(number)
            return
        if choices.is_cut_off(model, state):
            report.cut_off += 1
            self._goals.add(number)
        actions = choices.in_order(model, state) or choices.steps(model, state) or choices.patience(model, state)
        actions += choices.faults(model, state)
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
            if self._live:
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

    def _greedy(self) -> None:
        """L1 where not everything was seen: from some states of the frontier, without more faults, all becomes well.

        One way of many is tried, so what this finds is a suspicion: actors take turns, and time passes last.
        """
        every = max(1, len(self._frontier) // _SAMPLES)
        for number, state in self._frontier[::every]:
            tried: list[Action] = []
            state = state._replace(faults=0)
            for turn in range(_PATIENCE):
                if choices.is_well(self.model, state) or choices.is_cut_off(self.model, state):
                    break
                options = choices.steps(self.model, state) or choices.patience(self.model, state)
                tried.append(options[turn % len(options)])
                state, wrong = self.model.after(state, tried[-1])
                if wrong:
                    self.report.findings.append(Finding(*wrong[0], [*self.path(number), *tried]))
                    return
            else:
                text = f"{_PATIENCE} steps without a fault, and all is not well"
                self.report.findings.append(Finding("L1?", text, [*self.path(number), *tried]))
                return
        self.report.continued = len(self._frontier[::every])

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
