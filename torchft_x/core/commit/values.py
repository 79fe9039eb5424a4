"""Values of a rank's step: what it asks and votes with, how the step ended, and when its gradients count again."""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.data.deal import Deal
from torchft_x.core.types import Computed, JoinReason, Part, State


@dataclass(frozen=True, slots=True)
class Terms:
    """State of this rank as reported in its ask for a quorum."""

    state: State
    torn: bool
    commit_failures: int  # number of failed commits in a row
    reason: JoinReason
    suspects: tuple[str, ...]  # replica ids
    unreached: tuple[str, ...] = ()  # replica ids of members to which this rank could not connect


@dataclass(frozen=True, slots=True)
class LocalVote:
    """This rank's vote. `step` is the quorum's top step, which is equal on all ranks, also on those that heal."""

    step: int
    quorum_id: int
    participants: int  # number of that quorum's participants
    ok: bool
    enough_replicas: bool
    errored: Exception | None  # first error of the step, else the objection
    deal: Deal | None = None  # slots of the step's data; None: the script chooses its data itself

    def __str__(self) -> str:
        return f"enough_replicas={self.enough_replicas}, errored={self.errored}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a step. `give_up` is the sentence for the user after too many failed commits in a row, else ''."""

    step: int  # step that was tried
    quorum_id: int
    committed: bool
    participants: int
    reason: str  # reason why it was dropped; '' if committed
    give_up: str = ""
    undecided: bool = False  # whether the next quorum decides on the commit
    pause: float = 0.0  # seconds to wait before the next ask, after a quorum with too few participants


def misfit(kept: Computed, part: Part, deal: Deal | None, *, all_keep: bool) -> str:
    """Return the reason why these gradients must not count for `part` and `deal`, or '' if they may (I9).

    Gradients of dealt slots must be of exactly the slots that this quorum expects of the group; the number says nothing then.

    Scripts choose their data by their number, so no two gradients of one reduction may be computed for the same number.
    New contributors compute for their present number. Without new ones, because members were only lost, the numbers of the
    others still differ, though they may not be the present ones.

    `all_keep` is whether each group of this quorum keeps its gradients. Otherwise one may recompute, for its new number.
    """
    computed = kept.part
    if deal is not None:
        return "" if part.rank is None or kept.slots == deal.share(part.rank) else "this group has other slots now"
    if part.rank is None or part.rank == computed.rank:
        return ""  # zeros are always right
    if computed.rank is None:
        return f"its gradients were computed without a number, and this group is number {part.rank} now"
    if all_keep and set(part.contributors) <= set(computed.contributors):
        return ""
    return f"its gradients were computed as number {computed.rank}, and this group is number {part.rank} now"
