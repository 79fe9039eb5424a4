"""What a quorum stands at when some of its members hold a result that may have been committed elsewhere (R14).

A carrier that says "ok" in the cross-group vote is *prepared*: it holds the reduced gradients of a step, and so does
every other carrier, or nobody can have committed. So those that meet again can tell from what they hold whether the
step may exist somewhere (then it is committed, with the same bits), or can't (then it is reduced again).

Pure functions of the quorum message: every rank of every group comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # types.Quorum is made of this
    from torchft_x.core.types import Member, Prepared, State


@dataclass(frozen=True, slots=True)
class Settlement:
    """Where a quorum stands once its carriers have done what is asked of them here."""

    top: State
    """Newest complete state, after adopting."""
    carriers: tuple[Member, ...]
    """Members that hold it, after they have committed what they have prepared. In the quorum's order."""
    adopted: Prepared | None = None
    """Every carrier commits this result before anything else: a member that is away may have done so."""
    late: tuple[str, ...] = ()
    """Replica ids of carriers that are one step behind and hold the very result the others committed: they commit it."""


def settle(members: Sequence[Member], nothing: State) -> Settlement:
    """R14. `nothing`: the state of a quorum in which every member is torn."""
    whole = [m for m in members if not m.torn]
    newest = max((m.state for m in whole), default=nothing)
    at_top = [m for m in whole if m.state == newest]
    results: dict[int, dict[str, Prepared]] = {}  # by quorum, so that a long list costs one look at each entry
    for m in at_top:
        if m.prepared and m.prepared.step == newest.step + 1:
            results.setdefault(m.prepared.quorum, {})[m.replica_id] = m.prepared
    carried: dict[int, set[str]] = {quorum_id: set() for quorum_id in results}
    for m in at_top if results else ():
        for quorum_id in m.carried:
            if quorum_id in carried:
                carried[quorum_id].add(m.replica_id)
    for quorum_id in sorted(results, reverse=True):
        held = results[quorum_id]
        denied = any(replica_id not in held for replica_id in carried[quorum_id])
        if not denied and len(set(held.values())) == 1:  # results that differ can't have passed a vote
            carriers = tuple(m for m in at_top if m.replica_id in held)
            adopted = next(iter(held.values()))
            return Settlement(adopted.state, carriers, adopted=adopted)
    late = [
        m.replica_id for m in whole if m.state.step == newest.step - 1 and m.prepared and m.prepared.state == newest
    ]
    holds = {*late, *(m.replica_id for m in at_top)}
    return Settlement(newest, tuple(m for m in members if m.replica_id in holds), late=tuple(late))
