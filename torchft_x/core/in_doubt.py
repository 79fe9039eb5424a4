"""Settle the state of a quorum whose members may hold a result that was committed elsewhere (R14).

A carrier that votes "ok" in the cross-group vote is *prepared*: it holds the reduced gradients of a step. Either every
other carrier holds them, too, or no member can have committed. So the members of the next quorum can tell from their
results whether a commit may exist. If so, the step is committed, with the same bits. Otherwise it is reduced again.

These are pure functions of the quorum message, so every rank of every group comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `types.Quorum` imports this module
    from torchft_x.core.types import Member, Prepared, State


@dataclass(frozen=True, slots=True)
class Settlement:
    """State of a quorum once its carriers have carried out the adoption and late commits named here."""

    top: State
    """Newest complete state, after adopting."""
    carriers: tuple[Member, ...]
    """Members that hold `top`, after committing their prepared results. In the quorum's order."""
    adopted: Prepared | None = None
    """Result that every carrier commits before anything else, because an absent member may have committed it."""
    late: tuple[str, ...] = ()
    """Replica ids of carriers one step behind that hold the very result that the others committed: they commit it."""


def settle(members: Sequence[Member], nothing: State) -> Settlement:
    """Return the settlement of these members (R14). `nothing`: the state of a quorum whose members are all torn."""
    whole = [m for m in members if not m.torn]
    if not whole:
        return Settlement(nothing, ())
    # Compare numbers, because comparing ten thousand states takes ten times as long.
    step = max([m.state.step for m in whole])
    committed_in = max([m.state.committed_in for m in whole if m.state.step == step])
    at_top = [m for m in whole if m.state.committed_in == committed_in and m.state.step == step]
    newest = at_top[0].state
    results: dict[int, dict[str, Prepared]] = {}  # by quorum, so that a long list costs one pass
    for m in at_top:
        if m.prepared and m.prepared.step == step + 1:
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
    late = [m.replica_id for m in whole if m.prepared and m.state.step == step - 1 and m.prepared.state == newest]
    holds = {*late, *(m.replica_id for m in at_top)} if late else ()
    return Settlement(
        newest, tuple([m for m in members if m.replica_id in holds] if late else at_top), late=tuple(late)
    )
