"""Copies of the state in the memory of a group's supervisor, as `train.context.memory_checkpoint` makes them.

A copy is made while training continues. If the process dies meanwhile, the slot stays empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.data import Copy
from torchft_x.core.training.memory_checkpoint import CopyDecision, CopyVote, HeldCopies, newest_common
from torchft_x.core.types import State

if TYPE_CHECKING:
    from tests.sim.group_node import GroupNode
    from tests.sim.rank_node import RankNode

Slot = tuple[State, Copy] | None
"""A complete copy: the state and its contents. None: there is no complete copy."""
DUE = 0.3  # seconds between two copies
COPY = (0.001, 0.2)  # seconds that one copy takes


class SupervisorMemory:
    """Copies that one supervisor holds: two slots for each rank. They are lost with the supervisor."""

    def __init__(self, ranks: int) -> None:
        self.slots: list[list[Slot]] = [[None, None] for _ in range(ranks)]

    @property
    def newest(self) -> State | None:
        """Newest state of which all ranks hold a complete copy."""
        return newest_common([[slot[0] for slot in slots if slot is not None] for slots in self.slots])


class HeldState:
    """One rank's part in copying and restoring the group's state, during one attempt."""

    def __init__(self, rank: RankNode, memory: SupervisorMemory | None) -> None:
        self.label: tuple[int, int] | None = None  # (quorum id, step) of the vote that carried `said`
        self.said = CopyVote(0)
        self._rank = rank
        self._memory = memory
        self._slots = None if memory is None else memory.slots[rank.rank]
        self._copies = HeldCopies(None if memory is None else memory.newest)
        # This attempt has healed to an older state than its copy: the copy belongs to a history that has ended.
        self.given_up = False
        self._copying = False
        self._due = 0.0  # virtual time of the next copy

    def vote(self, label: tuple[int, int]) -> None:
        """Compute this rank's `CopyVote`, which is sent with its vote."""
        self.label = label
        if self._slots is not None:
            states = [slot and slot[0] for slot in self._slots]
            step = self._rank.step
            self.said = self._copies.vote(states, idle=not self._copying, torn=step.torn, behind=step.state != step.top)

    @staticmethod
    def decide(node: GroupNode, label: tuple[int, int], commit: bool) -> CopyDecision:
        """Return rank 0's decision for the group, or none if not all ranks voted under this label."""
        all_held = [rank.held for rank in node.ranks]
        if any(held.label != label for held in all_held):
            return CopyDecision(0)
        due = node.world.now >= all_held[0]._due
        return all_held[0]._copies.decide([held.said for held in all_held], due=due, commit=commit)

    def healed(self, state: State) -> None:
        newest = None if self._memory is None else self._memory.newest
        self.given_up = newest is not None and newest > state

    def receive(self, decision: CopyDecision, state: State | None) -> None:
        self._copies.receive(decision, state)
        if self._slots is not None and state is not None:
            for i, slot in enumerate(self._slots):
                if slot is not None and slot[0] > state:
                    self._slots[i] = None  # it belongs to a history that has ended

    def at_boundary(self) -> None:
        """Restore and begin copies at the beginning of a step, as the group has decided."""
        rank, wanted = self._rank, self._copies.wanted
        self.restore()
        self._copies.wanted = None
        if wanted is None or wanted != rank.step.state or self._slots is None or self._copying:
            return
        newest, world = self._memory.newest, rank.world
        index = self._copies.slot([slot and slot[0] for slot in self._slots])
        self._slots[index], self._copying = None, True
        world.checker.on_copy(rank, newest, self._memory.newest)
        self._due = world.now + DUE
        world.note(rank.process.name, "copies {}", wanted)
        world.after(world.rng.uniform(*COPY), rank.process, self._sealed, index, (wanted, rank.copy))

    def _sealed(self, index: int, slot: Slot) -> None:
        self._copying = False
        self._slots[index] = slot

    def restore(self) -> None:
        """Go on from the group's copy, if there is reason to, before the rank asks for a quorum."""
        rank = self._rank
        common = self._copies.to_load(rank.step.state)
        if common is None or self._slots is None:
            return
        self.given_up = False
        copy = next(slot[1] for slot in self._slots if slot is not None and slot[0] == common)
        rank.step.restore(common, 0, rank.load(copy))
        rank.world.note(rank.process.name, "goes on from its copy of {}", common)
        rank.world.checker.figures["restored"] += 1
        rank.world.checker.on_held(rank, common, copy.value)
