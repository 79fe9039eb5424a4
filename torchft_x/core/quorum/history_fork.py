"""Says what is lost where a new lineage begins (R9b), for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from torchft_x.core.types import Quorum, listed


def steps_lost(left: Quorum, reached: int, quorum: Quorum) -> int:
    """Return how many steps known to be committed no member of the new quorum holds; 0 or less: none.

    `left`: the quorum whose state no member carries on; `reached`: the newest step that one of its members reported.
    """
    return max(left.top.step, reached) - quorum.top.step


def sentence(left: Quorum, reached: int, quorum: Quorum, fates: Mapping[str, str]) -> str:
    """Return the sentences that say what was lost, with which members, and what would have kept it.

    `fates`: replica id -> how it ended, of the members of `left`.
    """
    steps, step = steps_lost(left, reached, quorum), quorum.top.step
    names = [m.replica_id for m in left.carriers or left.members]
    ends = listed([f"{name} ({fates.get(name) or 'it is away'})" for name in names])
    if steps <= 0:
        return (
            f"A new lineage begins at step {step}: no member carries on q{left.number}, which stood at {left.top}. "
            f"No committed step is known to be lost. Its state was with {ends}."
        )
    lost = "1 committed step is" if steps == 1 else f"{steps} committed steps are"
    return (
        f"A new lineage begins at step {step}: at least {lost} lost, up to step {step + steps} of q{left.number}, because all "
        f"groups that held them are gone: {ends}. What outlives all groups is a checkpoint (train_ddp.py: --checkpoint PATH; in "
        "your own script: save one and load it at the start); more groups, on more hosts, make it rarer that all are gone at once."
    )
