"""The vote between groups, as numbers of which the least over all members decides: no message, no leader (protocol, section 3).

Every value that must be equal travels with its negative: min(x) + min(-x) is 0 exactly if all rows hold the same x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchft_x.errors import StepError

_PAIRS = ("quorum", "step", "upper half of the digest", "lower half of the digest", "number of participants")
WIDTH = 1 + 2 * len(_PAIRS)
"""Numbers in a row; int64 each."""
_NEUTRAL = (1 << 63) - 1  # min(x, this) == x for every int64
_HALF = 1 << 32


@dataclass(frozen=True, slots=True)
class CrossVote:
    """What one carrier says about a result."""

    ok: bool  # prepared, in all ranks of its group (R12)
    quorum: int
    step: int  # the state's step once it is committed
    digest: int  # of the result, 64 bits unsigned
    contributors: int


def row(vote: CrossVote | None) -> tuple[int, ...]:
    """`WIDTH` integers that fit into int64. None: a member that heals; it has no objection and no say (R13)."""
    if vote is None:
        return (_NEUTRAL,) * WIDTH
    upper, lower = divmod(vote.digest, _HALF)
    q, s, c = vote.quorum, vote.step, vote.contributors
    return (int(vote.ok), q, -q, s, -s, upper, -upper, lower, -lower, c, -c)


def objection(reduced: Sequence[int]) -> str:
    """Why the vote does not pass, a clause; empty: it passes. `reduced`: the element-wise minimum of all rows.

    Raises `StepError` for something that isn't such a row.
    """
    if len(reduced) != WIDTH:
        raise StepError(f"a vote has {WIDTH} numbers, this one has {len(reduced)}; run one version in all groups.")
    if reduced[0] == _NEUTRAL:
        return "no member that holds the newest state has voted"
    if reduced[0] != 1:
        return "a member is not ok"
    differing = [name for i, name in enumerate(_PAIRS) if reduced[1 + 2 * i] + reduced[2 + 2 * i] != 0]
    return f"the members differ in the {' and the '.join(differing)}" if differing else ""
