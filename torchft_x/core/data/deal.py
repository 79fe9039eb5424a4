"""Share the slots of a step out among the groups whose gradients count.

A *slot* is room for one micro batch in a step. A group *holds* a slot if it has computed the slot's gradient in this
very step and keeps it. It reports the slots that it holds when it asks for a quorum inside a step that failed, so the quorum
message lists the holders. In all other quorums nobody holds anything.

Groups that train apart (LocalSGD, DiLoCo) have one slot for each inner step. Between two exchanges each has a *lane* of its
own: `period` slots in a row, and when it has used them up `period` more behind those of the others. An exchange commits the
slots that its members have trained; each reports their number in the reduction that precedes the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.data.ranges import cut, overlap, ranges, size, without
from torchft_x.core.types import Member, Part, Quorum, Ranges, State


@dataclass(frozen=True, slots=True)
class Claim:
    """Slots that a contributor holds, and its weight in the sharing of the others."""

    held: Ranges = ()
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Deal:
    """Slots of one step of one quorum, by contributor in the order of their numbers."""

    held: tuple[Ranges, ...]  # slots whose gradients are computed already, each held once
    given: tuple[Ranges, ...]  # slots that a contributor computes in this quorum, each given once
    slots: Ranges  # all of them: what a commit covers
    lanes: int = 0  # members of the quorum, if groups train apart

    def share(self, number: int | None) -> Ranges:
        """Return the slots of the contributor with this number; none for a rank that contributes zeros (None)."""
        return () if number is None else ranges((*self.held[number], *self.given[number]))


def deal(options: DataOptions, claims: Sequence[Claim]) -> Deal:
    """Return the deal of a step among contributors with these claims.

    Holders keep their slots. A claim to slots that the step does not have, or that overlaps with one before it, counts for
    nothing, and with `STRICT` none does unless all slots are held. The slots that nobody holds go to the contributors that
    hold none. If all hold some, they are left out.
    """
    shrinks = options.policy is Policy.SHRINK
    held: list[Ranges] = []
    taken: Ranges = ()
    for claim in claims:
        possible = not claim.held or shrinks or claim.held[-1][1] <= options.slots
        held.append(claim.held if possible and not overlap(claim.held, taken) else ())
        taken = ranges((*taken, *held[-1])) if held[-1] else taken
    if options.policy is Policy.STRICT and size(taken) < options.slots:
        held, taken = [()] * len(claims), ()
    idle = [i for i, mine in enumerate(held) if not mine]
    free = without(((0, len(idle) + size(taken) if shrinks else options.slots),), taken)
    counts = [1] * len(idle) if shrinks else shares(size(free), [claims[i].weight for i in idle])
    given: list[Ranges] = [()] * len(claims)
    for i, part in zip(idle, cut(free, counts), strict=False):
        given[i] = part
    return Deal(tuple(held), tuple(given), ranges((*taken, *(pair for part in given for pair in part))))


def deals_of(quorum: Quorum, part: Part, options: DataOptions | None) -> tuple[Deal | None, Deal | None]:
    """Return the deals of a quorum's first step and of its later ones.

    They are None without options, and if groups train apart: then the members count their slots at each exchange.
    """
    if options is None or options.period:
        return None, None
    by_id = {m.replica_id: m for m in quorum.members}
    members = [by_id[replica_id] for replica_id in part.contributors]
    later = deal(options, [Claim((), m.weight) for m in members])
    top = quorum.top
    counts = [_counts(m, top) for m in members]
    if not any(m.held for m, it in zip(members, counts, strict=True) if it):
        return later, later
    claims = [Claim(m.held if it else (), m.weight) for m, it in zip(members, counts, strict=True)]
    return deal(options, claims), later


def _counts(member: Member, top: State) -> bool:
    """Return whether this member's claim counts in a step that begins at `top`.

    Only members at the top hold gradients of that step. Before the first commit equal states need not be equal parameters, so
    nobody does (R15).
    """
    return member.state == top and not member.torn and top.step > 0


def shares(count: int, weights: Sequence[int]) -> list[int]:
    """Divide `count` in proportion to positive `weights`: whole numbers, by largest remainder, the first of equals first."""
    total = sum(weights)
    if not total:
        return []
    found = [count * w // total for w in weights]
    order = sorted(range(len(weights)), key=lambda i: -(count * weights[i] % total))
    for i in order[: count - sum(found)]:
        found[i] += 1
    return found


def lane_slot(step: int, lane: int, lanes: int, period: int) -> int:
    """Return the slot of inner step `step` (from 0, since the last exchange) in lane `lane` of `lanes`."""
    turn, rest = divmod(step, period)
    return (turn * lanes + lane) * period + rest


def lane_slots(steps: Sequence[int], period: int) -> Ranges:
    """Return the slots of the first `steps[i]` inner steps of each lane i."""
    found = []
    for lane, count in enumerate(steps):
        for turn in range(-(-count // period)):
            first = lane_slot(turn * period, lane, len(steps), period)
            found.append((first, first + min(period, count - turn * period)))
    return ranges(found)
