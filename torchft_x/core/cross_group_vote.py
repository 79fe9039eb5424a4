"""Encode the vote between groups as numbers whose minimum over all members decides, without a leader.

No further message is needed. Each value that must be equal travels with its negative: min(x) + min(-x)
is 0 exactly if all rows hold the same x.

Now and then the members compare the state that the step starts from, too, or a gradient that two of them have computed
(`core.commit.slot_check`). If the digests differ, one member is wrong, and a roll call finds out which: each member has a
turn, in which it alone reports its digests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchft_x.errors import StepError

_PAIRS = ("quorum", "step", "upper half of the digest", "lower half of the digest", "number of participants")
_COMPARED = 1 + 2 * len(_PAIRS)  # index of the two pairs of the compared digest
WIDTH = _COMPARED + 4
"""Number of int64 values in a row."""
_NEUTRAL = (1 << 63) - 1  # min(x, this) == x for every int64
_HALF = 1 << 32


@dataclass(frozen=True, slots=True)
class CrossVote:
    """Vote of one carrier on a result."""

    ok: bool  # whether all ranks of its group are prepared (R12)
    quorum: int
    step: int  # the state's step once it is committed
    digest: int  # digest of the result, 64 bits unsigned
    contributors: int  # number of groups whose gradients are in the result


def row(vote: CrossVote | None, compared: int = 0, *, calls: bool = False) -> tuple[int, ...]:
    """Return `WIDTH` integers that fit into int64.

    Args:
        vote: the carrier's vote; None: a healing member, which has no objection and no say (R13).
        compared: digest of what the members compare in this step, the state before it or the gradient of a slot, 64 bits
            unsigned; 0: this member compares nothing.
        calls: whether a roll call must follow, whatever the members' digests are.
    """
    if vote is None:
        return (_NEUTRAL,) * WIDTH
    upper, lower = divmod(vote.digest, _HALF)
    q, s, c = vote.quorum, vote.step, vote.contributors
    numbers = (int(vote.ok), q, -q, s, -s, upper, -upper, lower, -lower, c, -c)
    return (*numbers, *((-1,) * 4 if calls else _pairs(compared)))  # -1 and -1 are a pair of no digest


def _pairs(digest: int) -> tuple[int, ...]:
    upper, lower = divmod(digest, _HALF)
    return (upper, -upper, lower, -lower) if digest else (_NEUTRAL,) * 4


def roll_call_follows(reduced: Sequence[int]) -> bool:
    """Return whether the members call the roll after this vote: their digests differ, or one calls it in any case."""
    upper, minus_upper, lower, minus_lower = reduced[_COMPARED:]
    return upper != _NEUTRAL and (upper + minus_upper, lower + minus_lower) != (0, 0)


def roll_call_row(state: int, slot: int) -> tuple[int, ...]:
    """Return a member's row in a roll call. A digest of 0: it is another's turn, or this member compares nothing."""
    return (*_pairs(state), *_pairs(slot), *(_NEUTRAL,) * (WIDTH - 8))


def roll_call_answer(reduced: Sequence[int]) -> tuple[int, int]:
    """Return the digests of state and gradient of the member whose turn it was; 0: it reported none."""
    state, slot = (0 if reduced[i] == _NEUTRAL else reduced[i] * _HALF + reduced[i + 2] for i in (0, 4))
    return state, slot


def wrong_states(states: Sequence[int]) -> list[int]:
    """Return the indexes of the members whose state differs from the most frequent one. `states` 0: not compared.

    If two states are equally frequent, the one that comes first counts."""
    count = Counter(s for s in states if s)
    right = max(count, key=lambda s: count[s], default=0)  # the first of equals: a Counter keeps the order
    return [i for i, s in enumerate(states) if s and s != right]


def objection(reduced: Sequence[int]) -> str:
    """Return why the vote does not pass, a clause; empty: it passes, unless a roll call has shown a difference.

    `reduced` is the element-wise minimum of all rows.
    Raises `StepError` if `reduced` has not `WIDTH` numbers.
    """
    if len(reduced) != WIDTH:
        raise StepError(f"a vote has {WIDTH} numbers, this one has {len(reduced)}; run one version in all groups.")
    if reduced[0] == _NEUTRAL:
        return "no member that holds the newest state has voted"
    if reduced[0] != 1:
        return "a member is not ok"
    differing = [name for i, name in enumerate(_PAIRS) if reduced[1 + 2 * i] + reduced[2 + 2 * i] != 0]
    return f"the members differ in the {' and the '.join(differing)}" if differing else ""
