"""Decide which slot of a step is computed by several groups, and which group is faulty if their gradients differ.

In reproducible steps a slot's gradient has the same bits whichever group computes it. In each `check_every`-th step one more
group computes a slot of another. If the two differ the step is not committed. It is computed again from the same state, and
then all groups compute that slot, so that most of them can be right.

The slot depends on the step's number alone. A group that has joined in between, or has not received the vote, computes that
slot or none. So groups need not agree on the phase: each vote compares what was computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from torchft_x.core.data.deal import Deal
from torchft_x.core.data.options import DataOptions
from torchft_x.core.data.ranges import members
from torchft_x.core.types import State, group_of


class CheckPhase(Enum):
    """Which groups compute the slot that is compared in a step."""

    PAIR = "pair"  # the group that has the slot, and another one
    ALL = "all"  # gradients have differed: all groups
    OVER = "over"  # all have computed it: the step is computed without a comparison


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """Groups whose gradients are wrong, and the number of groups that have always computed the right one."""

    wrong: tuple[str, ...] = ()  # replica ids; empty: no gradient is wrong, or nobody knows which
    right: int = 0


class SlotCheck:
    """Comparison of one slot's gradients in the step in hand, for data with `check_every`.

    All ranks of a group have the same phase; rank 0 also has digests.
    """

    def __init__(self) -> None:
        self._state = State()  # state at which the fields below hold; at another one nothing was compared yet
        self._phase = CheckPhase.PAIR
        self._digests: dict[str, set[int]] = {}  # all digests that a member has reported, by replica id
        self._own = 0  # newest digest that this group has computed; 0: none

    def phase(self, state: State) -> CheckPhase:
        """Return the phase of the step that begins at `state`."""
        return self._phase if state == self._state else CheckPhase.PAIR

    def slot(self, state: State, options: DataOptions, deal: Deal, number: int | None) -> int | None:
        """Return the slot whose gradient the contributor with this number compares; None: it compares none."""
        phase, workers = self.phase(state), [i for i in range(len(deal.given)) if deal.share(i)]
        if number not in workers or len(workers) < 2 or not is_due(state, options) or phase is CheckPhase.OVER:
            return None
        nth, slot = state.step // options.check_every, compared_slot(state, options)
        owner = next((i for i in workers if slot in members(deal.share(i))), None)
        others = [i for i in workers if i != owner]
        pair = (owner, others[nth % len(others)])
        return slot if owner is not None and (phase is CheckPhase.ALL or number in pair) else None

    def digest(self, state: State, computed: int) -> int:
        """Return the digest that this group reports in a roll call: `computed`, or if that is 0, its newest one at `state`.

        A group that has missed the end of a roll call calls the next one, when the others don't compute the slot any more.
        """
        self._move_to(state, self.phase(state))
        self._own = computed or self._own
        return self._own

    def report(self, state: State, digests: Mapping[str, int]) -> CheckVerdict:
        """Take the digests that the members have computed, by replica id; 0: none. Return what all digests at `state` say."""
        self._move_to(state, self.phase(state))
        for replica_id, digest in digests.items():
            if digest:
                self._digests.setdefault(replica_id, set()).add(digest)
        return verdict(self._digests)

    def advance(self, state: State) -> None:
        """Go on to the next phase: gradients have differed, or the faulty group is known."""
        self._move_to(state, CheckPhase.ALL if self.phase(state) is CheckPhase.PAIR else CheckPhase.OVER)

    def reset(self) -> None:
        """Begin anew: the groups' states differ, which explains gradients that do."""
        self._move_to(State(), CheckPhase.PAIR)

    def _move_to(self, state: State, phase: CheckPhase) -> None:
        if state != self._state:
            self._digests, self._own = {}, 0
        self._state, self._phase = state, phase


def is_due(state: State, options: DataOptions) -> bool:
    """Return whether a slot is compared in the step that begins at `state`."""
    return state.step % options.check_every == 1


def compares_whole_state(check: SlotCheck, state: State, options: DataOptions) -> bool | None:
    """Return whether all of the parameters and optimizer state are compared in the step that begins at `state`.

    None: a part of them is, if that is due. In other steps with a comparison of gradients none is in the phase `PAIR`, because
    digests of a part and of all of it differ.
    """
    return check.phase(state) is not CheckPhase.PAIR if is_due(state, options) else None


def compared_slot(state: State, options: DataOptions) -> int:
    """Return the slot that is compared if one is. Multiples of the golden ratio visit the ranges of all groups in turn."""
    nth = state.step // options.check_every
    return (nth * 0x9E3779B97F4A7C15 % (1 << 64)) * options.slots >> 64


def verdict(digests: Mapping[str, set[int]]) -> CheckVerdict:
    """Return the members that have computed a wrong gradient. `digests`: all that each has computed, by replica id.

    The right gradient is the one that more groups have always computed than any other one. Groups that contradict themselves
    must not be more than these, else the kernels may not be deterministic. An attempt's host may differ from that of the
    group's next one, but attempts of one group are one witness.
    """
    groups: dict[str, set[int]] = {}
    for replica_id, found in digests.items():
        groups.setdefault(group_of(replica_id), set()).update(found)
    steady = Counter(next(iter(found)) for found in groups.values() if len(found) == 1).most_common(2)
    unsteady = sum(len(found) > 1 for found in groups.values())
    if not steady or steady[0][1] < unsteady or (len(steady) == 2 and steady[0][1] == steady[1][1]):
        return CheckVerdict()
    (right, count), *_ = steady
    return CheckVerdict(tuple(r for r, found in digests.items() if found != {right}), count)
