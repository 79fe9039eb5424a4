"""Options of the data of a training, equal in all groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Policy(Enum):
    """What a step commits when a group is lost inside it."""

    SHRINK = "shrink"  # one slot for each group; what the lost group had is trained in a later step
    CONSTANT = "constant"  # a constant number of slots, but only the rest of this step; what is missing comes later
    STRICT = "strict"  # a constant number of slots: the step is computed again unless the others hold all slots


class Tail(Enum):
    """What becomes of the samples of an epoch that do not fill a step."""

    WRAP = "wrap"  # the step is filled from the next epoch
    SHORT = "short"  # the epoch ends with a step of fewer slots, and one with a single slot of fewer samples
    DROP = "drop"  # they are left out


@dataclass(frozen=True, slots=True)
class DataOptions:
    """Sizes and policies. A step has `slots` slots of `batch` samples; with `Policy.SHRINK` one for each group."""

    policy: Policy
    slots: int
    batch: int
    tail: Tail = Tail.WRAP
    weight: int = 1  # this group's weight in the sharing of slots; may differ between groups
    reproducible: bool = False  # slots are summed in the order of `core.data.reduction_tree`
    check_every: int = 0  # steps between two comparisons of a slot's gradient (`core.commit.slot_check`); 0: none
    period: int = 0  # inner steps between two exchanges of groups that train apart; 0: every step is a commit

    def used(self, length: int) -> int:
        """Return how many of `length` samples an epoch has: all, or with `Tail.DROP` only those that fill steps."""
        if self.tail is not Tail.DROP:
            return length
        step = self.batch * (1 if self.policy is Policy.SHRINK else self.slots)
        return length // step * step
