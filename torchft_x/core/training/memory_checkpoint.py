"""Decide when and where a rank copies its state into memory that outlives it, and which copy a group resumes from.

A rank has two slots, each with room for one state. All ranks of a group copy after the same steps: rank 0 orders a
copy with the decision of a step, and each rank's vote reports its progress. The newest state that all ranks are known
to hold complete is the group's (`HeldCopies.common`). Its slot is not overwritten, so a killed group always has it.

A new attempt resumes from that state and reports it when it first asks for a quorum. From then on it is a member like
any other. If others train, they go on and it heals (R22). If no member carries the quorum before, the newest state wins
(R9). An attempt whose heal breaks off resumes from the copy again, because the heal has spoilt its own state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntFlag

from torchft_x.core.types import State

COST = 0.01
"""Largest fraction of the time that copies may take, counted as the time of their threads. Their cost to the steps,
in memory bandwidth, caches and waiting for the slowest group, is up to twice that."""
SHORTEST = 0.1
"""Least seconds between two copies. It matters for tiny states, where the fixed cost of a copy dominates."""


class CopySchedule:
    """Choice of the steps after which a group copies, so that copies take at most the fraction `COST` of the time.

    Groups wait for each other, so a copy of one group costs all of them. Each group copies after steps whose number is
    a multiple of a power of two, the smallest that it can afford. Such strides are nested: all copies coincide with
    those of the group that copies most often, and together take no more time. The groups need not agree on anything.
    """

    def __init__(self) -> None:
        self._took = 0.0  # seconds per copy; a few copies outweigh one slow copy. 0: none yet

    def due(self, step: int, step_seconds: float) -> bool:
        """Return whether to copy the state after `step` committed steps. `step_seconds`: usual duration; 0: unknown."""
        if not self._took:
            return True
        if step_seconds <= 0.0:
            return False
        least, stride = max(self._took / COST, SHORTEST), 1
        while stride * step_seconds < least:
            stride *= 2
        return step % stride == 0

    def copied(self, took: float) -> None:
        """Record that a copy has ended which took `took` processor seconds."""
        self._took = max(took, (self._took + took) / 2)


class CopyVote(IntFlag):
    """Vote of a rank about copies, carried by its vote on the step."""

    IDLE = 1  # the rank may copy: it has room, and no copy is under way
    HOLDS = 2  # the last copy that was ordered is complete
    TORN = 4  # a heal was half applied
    BEHIND = 8  # the rank is not at the quorum's state: its heal failed


class CopyDecision(IntFlag):
    """Decision of rank 0 about copies, carried by its decision on the step."""

    COPY = 1  # copy the state that this commit leads to, before the next step
    HELD = 2  # all ranks hold the last copy that was ordered
    RESTORE = 4  # resume from the group's copy


class HeldCopies:
    """One rank's view of its group's copies. `common`: newest state that all ranks hold, at first `newest_common`."""

    def __init__(self, common: State | None) -> None:
        self.common = common
        self.wanted: State | None = None  # state to copy once this rank is at it and begins the next step
        self._begins = True  # whether this rank has not asked for a quorum yet
        self._goes_back = False  # whether rank 0 has ordered to resume from the group's copy
        self._ordered: State | None = None  # state of the copy that was ordered last

    @property
    def is_pending(self) -> bool:
        """Whether a copy may have to be made or loaded before this rank asks for a quorum."""
        return self._begins or self._goes_back or self.wanted is not None

    def vote(self, slots: Collection[State | None], *, idle: bool, torn: bool, behind: bool) -> CopyVote:
        """Return this rank's vote. `slots`: the complete state in each slot; None: the slot holds none."""
        holds = self._ordered is not None and self._ordered in slots
        return CopyVote(CopyVote.IDLE * idle | CopyVote.HOLDS * holds | CopyVote.TORN * torn | CopyVote.BEHIND * behind)

    def decide(self, votes: Collection[CopyVote], *, due: bool, commit: bool) -> CopyDecision:
        """Return rank 0's decision, from the votes of all ranks. `due`: whether a copy is due after this step.

        A group whose ranks are at unequal states holds no complete state, even if no rank is torn. A group whose ranks
        have all stayed at their state need not restore a copy.
        """
        apart = any(v & CopyVote.TORN for v in votes) or len({v & CopyVote.BEHIND for v in votes}) > 1
        held = all(v & CopyVote.HOLDS for v in votes)
        copy = commit and due and all(v & CopyVote.IDLE for v in votes)
        restore = not commit and (held or self.common is not None) and apart
        return CopyDecision(CopyDecision.COPY * copy | CopyDecision.HELD * held | CopyDecision.RESTORE * restore)

    def receive(self, decision: CopyDecision, state: State | None) -> None:
        """Take rank 0's decision. `state`: the state after the commit; None: nothing is committed."""
        if decision & CopyDecision.HELD:
            self.common = self._ordered
        if state is not None and self.common is not None and self.common > state:
            self.common = None  # it belongs to an abandoned lineage: the others train on from an older state
        if decision & CopyDecision.COPY:
            self._ordered = self.wanted = state
        self._goes_back = self._goes_back or bool(decision & CopyDecision.RESTORE)

    def to_load(self, state: State) -> State | None:
        """Return the copy that this rank, at `state`, must load before it asks for a quorum; None: none.

        All ranks must decide alike. If one kept its healed state and another restored its copy, the group would hold no
        complete state."""
        begins, self._begins = self._begins, False
        back, self._goes_back = self._goes_back, False
        if self.common is not None and (back or (begins and self.common > state)):
            return self.common
        return None

    def slot(self, slots: Sequence[State | None]) -> int:
        """Return the slot of the next copy: never that of `common`, and preferably an empty one or the oldest."""
        return min(
            (i for i in range(len(slots)) if slots[i] is None or slots[i] != self.common),
            key=lambda i: (slots[i] is not None, slots[i] or State()),
        )


def newest_common(ranks: Sequence[Sequence[State]]) -> State | None:
    """Return the newest state of which every rank of a group holds its part complete; None: there is none."""
    return max(set(ranks[0]).intersection(*ranks), default=None) if ranks else None
