"""When a rank copies its state into memory that outlives it, where, and which copy a group goes on from.

A rank has two slots, each with room for one state. All ranks of a group copy after the same steps, by rank 0's word, which
comes with the decision of a step; each rank's vote says how far it is. The newest state that all ranks are known to hold
complete is the group's (`HeldCopies.common`): no copy goes into its slot, so a group that is killed at any time has it.

A life that begins goes on from that state, and says so when it first asks for a quorum; it is then one more member that
stands somewhere, and what is done with it is said elsewhere: who trains goes on, and it heals (R22); where nobody carries on
the quorum before, the newest state wins (R9). It offers the state again if a heal breaks off in the middle, as what it held
itself is spoilt then, and the copy is not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce

from torchft_x.core.types import State

COST = 0.01
"""Largest part of the time that copies may take by what is counted, the time of their threads. What they cost the steps, in
memory bandwidth, caches and waiting for the slowest group, is up to twice that."""
SHORTEST = 0.1
"""Seconds from one copy to the next at the least: what is fixed in a copy counts for tiny states."""


class CopySchedule:
    """After which steps a group copies: what the last copies took, and will take again, stays within `cost` of the time.

    Groups wait for each other, so what one of them copies costs all of them. They copy after steps whose number is a multiple
    of a power of two, each of the smallest one that it can afford. Such strides are nested: all groups' copies coincide with
    those of the group that copies most often, and together they take no more time than these. Nothing has to be agreed on.
    """

    def __init__(self, cost: float = COST, shortest: float = SHORTEST) -> None:
        self._cost = cost
        self._shortest = shortest
        self._took = 0.0  # a copy, in seconds; one that was slow once is forgotten in a few. 0: there was none yet

    def __repr__(self) -> str:
        return f"<CopySchedule {self._took:.3f} s each>"

    def due(self, step: int, step_seconds: float) -> bool:
        """Whether to copy the state that `step` committed steps have led to. `step_seconds`: of a usual step; 0: not known."""
        if not self._took:
            return True
        if step_seconds <= 0.0:
            return False
        least, stride = max(self._took / self._cost, self._shortest), 1
        while stride * step_seconds < least:
            stride *= 2
        return step % stride == 0

    def copied(self, took: float) -> None:
        """A copy that took so many seconds of a processor has just ended."""
        self._took = max(took, (self._took + took) / 2)


@dataclass(frozen=True, slots=True)
class RankWord:
    """What a rank's vote says of its copies."""

    idle: bool = False  # it may copy: it has room, and no copy is under way
    holds: bool = False  # the last copy that was ordered is complete
    torn: bool = False  # a heal was half applied
    behind: bool = False  # it does not stand where the quorum does: its heal failed

    @property
    def bits(self) -> int:
        """As a vote carries it."""
        return self.idle | self.holds << 1 | self.torn << 2 | self.behind << 3

    @staticmethod
    def of(bits: int) -> RankWord:
        return RankWord(bool(bits & 1), bool(bits & 2), bool(bits & 4), bool(bits & 8))


@dataclass(frozen=True, slots=True)
class GroupWord:
    """What rank 0 says with the decision of a step."""

    copy: bool = False  # copy the state that this commit leads to, before the next step
    held: bool = False  # all ranks hold the last copy that was ordered
    restore: bool = False  # go on from the group's copy

    @property
    def bits(self) -> int:
        """As a decision carries it."""
        return self.copy | self.held << 1 | self.restore << 2

    @staticmethod
    def of(bits: int) -> GroupWord:
        return GroupWord(bool(bits & 1), bool(bits & 2), bool(bits & 4))


NOTHING = GroupWord()


class HeldCopies:
    """What one rank knows of its group's copies. `common`: see the module; at the start as the ranks have found together."""

    def __init__(self, common: State | None) -> None:
        self.common = common
        self.wanted: State | None = None  # to be copied when this rank stands there, and begins the next step
        self._begins = True  # it has not asked for a quorum yet
        self._goes_back = False  # rank 0 has said so
        self._ordered: State | None = None  # the last copy

    def __repr__(self) -> str:
        return f"<HeldCopies {self.common or 'none'}, ordered {self._ordered or 'none'}>"

    def word(self, slots: Collection[State | None], *, idle: bool, torn: bool, behind: bool) -> RankWord:
        """Of this rank. `slots`: what they hold complete."""
        return RankWord(idle, self._ordered is not None and self._ordered in slots, torn, behind)

    def decide(self, words: Collection[RankWord], *, due: bool, commit: bool) -> GroupWord:
        """Rank 0's, from all ranks' words. `due`: a copy is due after this step.

        A group whose ranks stand at unequal states has none, though none of them is torn. One of which all ranks have stayed
        where they were needs no copy.
        """
        apart = any(w.torn for w in words) or len({w.behind for w in words}) > 1
        held = all(w.holds for w in words)
        return GroupWord(
            copy=commit and due and all(w.idle for w in words),
            held=held,
            restore=not commit and (held or self.common is not None) and apart,
        )

    def hear(self, word: GroupWord, state: State | None) -> None:
        """What rank 0 has said. `state`: what the commit leads to; None: there is none."""
        if word.held:
            self.common = self._ordered
        if state is not None and self.common is not None and self.common > state:
            self.common = None  # of a history that has ended: this one goes on from less, as the others have decided
        if word.copy:
            self._ordered = self.wanted = state
        self._goes_back = self._goes_back or word.restore

    def to_load(self, state: State) -> State | None:
        """This rank stands at `state`, and is about to ask for a quorum: the copy it must load first; None: it asks as it is.
        The same on all ranks: one that stays where its heal has brought it would leave the group without a state."""
        begins, self._begins = self._begins, False
        back, self._goes_back = self._goes_back, False
        if self.common is not None and (back or (begins and self.common > state)):
            return self.common
        return None

    def slot(self, slots: Sequence[State | None]) -> int:
        """Which one the next copy goes into: not that of `common`, and rather one that holds nothing, or little."""
        return min(
            (i for i in range(len(slots)) if slots[i] is None or slots[i] != self.common),
            key=lambda i: (slots[i] is not None, slots[i] or State()),
        )


def newest_common(ranks: Sequence[Sequence[State]]) -> State | None:
    """The newest state of which every rank of a group holds its part complete; None: there is none."""
    if not ranks:
        return None
    common = reduce(set.intersection, (set(states) for states in ranks))
    return max(common, default=None)
