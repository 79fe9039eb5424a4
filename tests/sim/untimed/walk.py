"""Random schedules through the same model: no proof, but far deeper and wider than every schedule can be followed."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from dataclasses import dataclass

from tests.sim.untimed import choices
from tests.sim.untimed.model import Action, Global, Model
from tests.sim.untimed.search import Finding
from tests.sim.untimed.truth import Wrong

LONGEST = 600
"""Actions of one walk; what is not well by then never will be."""


@dataclass
class Walks:
    """What many random schedules came to."""

    walks: int = 0
    actions: int = 0
    faults: int = 0
    well: int = 0  # ended with all groups together
    seconds: float = 0.0  # of the processor
    seed: int | None = None  # of the walk that found something
    finding: Finding | None = None

    def __str__(self) -> str:
        text = f"{self.walks} walks, {self.actions} actions, {self.faults} faults, {self.well} ended well, "
        text += f"{self.seconds:.1f} s"
        return text if self.finding is None else f"{text}\nseed {self.seed}: {self.finding}"


def walk(model: Model, seed: int, watch: Collection[str] = ()) -> tuple[list[Action], Wrong | None, bool]:
    """One schedule: the actions, what was wrong in the last one, and whether all was well in the end."""
    rng = random.Random(seed)
    eager = rng.choice((0.01, 0.05, 0.2))  # how soon faults come
    state, path = model.initial(), []
    while len(path) < LONGEST:
        if choices.is_well(model, state):
            return path, None, True
        if choices.is_alone(model, state):
            alone = ("L2", "a group goes on beyond all grants while another waits")
            return path, None if watch and "L2" not in watch else alone, False
        action = _choose(model, state, rng, eager)
        path.append(action)
        before, (state, wrong) = state, model.after(state, action)
        if state == before and not wrong and _nothing_left(model, state):
            break
        wrong = [w for w in wrong if not watch or w[0] in watch]
        if wrong:
            return path, wrong[0], False
    if watch and "L1" not in watch:
        return path, None, False
    return path, ("L1", f"all is not well after {len(path)} actions, and nothing happens any more"), False


def _nothing_left(model: Model, state: Global) -> bool:
    """Only time can help, if anything."""
    return not choices.steps(model, state) and [a[0] for a in choices.patience(model, state)] == ["pass_time"]


def _choose(model: Model, state: Global, rng: random.Random, eager: float) -> Action:
    if state.faults and rng.random() < eager:
        by_kind: dict[str, list[Action]] = {}
        for action in choices.faults(model, state):
            by_kind.setdefault(action[0], []).append(action)
        if by_kind:
            return rng.choice(by_kind[rng.choice(sorted(by_kind))])
    return rng.choice(choices.steps(model, state) or choices.patience(model, state))


def walks(model: Model, *, seconds: float, first: int = 0, watch: Collection[str] = ()) -> Walks:
    """Seed after seed, until time is up or something is wrong. What was found is made shorter."""
    began, total = time.process_time(), Walks()
    seed = first
    while total.seconds < seconds:
        path, wrong, well = walk(model, seed, watch)
        total.walks += 1
        total.actions += len(path)
        total.faults += sum(a[0] in model.rules.kinds for a in path)
        total.well += well
        total.seconds = time.process_time() - began
        if wrong is not None:
            total.seed = seed
            short = shorten(model, path, wrong[0])
            total.finding = Finding(*(_ends(model, short, wrong[0]) or wrong), short)
            break
        seed += 1
    return total


def _ends(model: Model, path: list[Action], invariant: str) -> Wrong | None:
    """Whether this is a possible schedule, and its last action breaks this invariant."""
    state = model.initial()
    for nth, action in enumerate(path):
        options = choices.steps(model, state)
        if invariant == "L1" and nth == len(path) - 1 and not _nothing_left(model, state):
            return None
        may = action in options or action in choices.faults(model, state)
        if not may and (options or action not in choices.patience(model, state)):
            return None
        before, (state, wrong) = state, model.after(state, action)
        if invariant == "L1" and nth == len(path) - 1:
            stuck = before == state and not choices.is_well(model, state)
            return ("L1", "nothing happens any more, and all is not well") if stuck else None
        found = next((w for w in wrong if w[0] == invariant), None)
        if found is not None:
            return found if nth == len(path) - 1 else None
    return None


def shorten(model: Model, path: list[Action], invariant: str) -> list[Action]:
    """Leave actions out as long as the rest is a possible schedule that ends in the same violation."""
    size = len(path) // 2
    while size:
        start = 0
        while start < len(path) - 1:
            shorter = path[:start] + path[start + size :]
            if shorter and _ends(model, shorter, invariant):
                path = shorter
            else:
                start += size
        size //= 2
    return path
