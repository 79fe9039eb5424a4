"""Options with which a step asks for a quorum, and what the quorum that comes means for this rank."""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.data.deal import Deal
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.types import Part, Quorum


@dataclass(frozen=True)
class QuorumOptions:
    """Options with which a step asks for its quorum.

    Args:
        timeout: seconds until the quorum must have come.
        patience: further seconds while the lighthouse tells what it waits for, or is away for a while.
        allow_heal: whether members may heal in this quorum.
        shrink_only: whether newcomers are kept out.
    """

    timeout: float
    patience: float = 0.0
    allow_heal: bool = True
    shrink_only: bool = False


@dataclass(frozen=True)
class QuorumRole:
    """A quorum and its meaning for this rank: computed once, and read by each further step in the quorum."""

    quorum: Quorum
    plan: QuorumPlan
    part: Part
    counts_after_heal: bool  # the value with which `part` was computed
    votes_late: bool  # some member's script reduces after backward
    steady: bool  # this rank neither heals nor serves a heal, so the next step begins like this one
    deal: Deal | None = None  # slots of each later step in the quorum; None: the script chooses its data itself
