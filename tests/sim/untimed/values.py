"""Small values of the untimed model: what is explored, and parameters that tell all of their history."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

KINDS = (
    "crash", "crash_reported", "cut", "lighthouse", "lease", "suspect", "twin", "leave", "error", "fetch", "call",
)  # fmt: skip
"""Kinds of faults, see `faults`."""
ENDS = ("finish", "crash_reported")
"""For R21: a group that has reached the end of its training leaves, and its process ends later, well or not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What is explored."""

    groups: int = 2
    ranks: int = 1
    """Of each group."""
    steps: int = 1
    """It is well when all groups have committed this step or a later one together."""
    faults: int = 1
    vote: bool = False
    """The groups vote with each other before a commit."""
    grants: bool = True
    """Groups run on inside a grant, of `grant_steps`."""
    grant_steps: int = 2
    min_replica_size: int = 1
    kinds: tuple[str, ...] = KINDS
    """Faults that may happen."""
    init_sync: bool = False
    """Groups begin with weights of their own, and the first quorum makes them equal."""
    serve_live: bool = False
    """Not R17: a healing source serves what it holds now, as if it were the quorum's state."""
    final: bool | None = None
    """Whether a committed step must be final (A1). None: if there is a vote."""
    group_names: tuple[str, ...] = ("a", "b", "c", "d")

    @property
    def cap(self) -> int:
        """Nobody starts a step from here on. Who gets here alone has passed somebody over, see `choices.held_back`."""
        return self.steps + (1 + self.faults) * ((self.grant_steps if self.grants else 1) + 2)

    @property
    def final_commits(self) -> bool:
        return self.vote if self.final is None else self.final


class Interner(Generic[T]):
    """Gives equal values the same small number."""

    def __init__(self) -> None:
        self.values: list[T] = []  # by number
        self._numbers: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self.values)

    def number(self, value: T) -> int:
        found = self._numbers.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


@dataclass(frozen=True, slots=True, order=True)
class Value:
    """Parameters: equal exactly if all of their history is equal."""

    number: int

    def __repr__(self) -> str:
        return f"w{self.number}"


Contribution = tuple[str, int, Value]  # group, step, the parameters the gradients were computed from
_histories: Interner[Any] = Interner()


def origin(group: str = "") -> Value:
    """Initial weights; of a group, if groups don't begin with the same."""
    return Value(_histories.number(("origin", group)))


def after(value: Value, step: int, result: tuple[Contribution, ...]) -> Value:
    """The parameters after a step with these gradients."""
    return Value(_histories.number((value, step, result)))


def digest(result: tuple[Contribution, ...]) -> int:
    """Of a reduced result."""
    return _histories.number(("result", result))


def told(value: Value) -> str:
    """For people: how these parameters came to be."""
    history = _histories.values[value.number]
    if history[0] == "origin":
        return "init"
    before, step, result = history
    return f"{told(before)} +{step + 1}[{''.join(group for group, _, _ in result)}]"
