"""From a quorum to what one rank has to do: its place, the top state, who heals from whom.

A pure function of the quorum message, so every rank of every group computes the same picture. The rules are the
peer's (its manager's quorum result), with two repairs: states are compared by (step, committed_in), and roles follow
R10, R17 (only carriers are sources, only carriers contribute).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchft_x.core.types import Member, Quorum, State
from torchft_x.errors import StepError, TransferError

OURS = "torchft_x/"  # how our library tags begin
_PEER = "torchft"  # a member without a tag


class WorldSizeMode(Enum):
    """How the number of contributing groups follows the quorum (the peer's names and meaning)."""

    DYNAMIC = 0
    FIXED_WITH_SPARES = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a quorum means for one rank (one group rank of one member)."""

    quorum_id: int
    config_id: int
    number: int
    replica_rank: int  # own place among all members
    replica_world_size: int
    top: State  # what everybody trains from
    heal: bool  # this rank must fetch the top before it can commit
    sources: tuple[Member, ...] = ()  # where it may fetch from, the peer's choice first; empty unless `heal`
    source_rank: int | None = None  # replica rank of sources[0]
    dst_ranks: tuple[int, ...] = ()  # replica ranks that fetch from this rank first
    store_address: str = ""  # of the member whose store the process group meets in
    max_replica_rank: int | None = None  # own place among the members at the top; None: not one of them
    max_world_size: int = 0  # how many members are at the top
    replica_ids: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()  # reconfigure handles of this group rank, over all members
    commit_failures: int = 0  # most in a row over the members


def plan(quorum: Quorum, replica_id: str, group_rank: int, *, init_sync: bool = True) -> Plan:
    """What `quorum` means for `group_rank` of member `replica_id`.

    Raises `StepError` if no member holds a complete state, `TransferError` if a heal would cross libraries.
    """
    ids = tuple(m.replica_id for m in quorum.members)
    if replica_id not in ids:
        raise StepError(f"{replica_id} is not in quorum q{quorum.number} ({', '.join(ids)}); ask for another quorum.")
    carriers = quorum.carriers
    if not carriers:
        raise StepError(
            "no group holds a complete state: every member was lost or cut off in the middle of a heal; "
            "start the job again from its last checkpoint."
        )
    me = ids.index(replica_id)
    top = quorum.top
    primary = carriers[group_rank % len(carriers)]
    at_top = [m.replica_id for m in carriers]
    healers = _healers(quorum, primary, init_sync)
    sources: tuple[Member, ...] = ()
    if me in healers:
        pool = (primary,) if replica_id in at_top else carriers
        first = (me + group_rank) % len(pool)
        sources = _same_library(quorum.members[me], pool[first:] + pool[:first])
    return Plan(
        quorum_id=quorum.id,
        config_id=quorum.config_id,
        number=quorum.number,
        replica_rank=me,
        replica_world_size=len(ids),
        top=top,
        heal=bool(sources),
        sources=sources,
        source_rank=ids.index(sources[0].replica_id) if sources else None,
        dst_ranks=tuple(h for h in healers if _first_source(quorum, h, group_rank, primary) == replica_id),
        store_address=primary.store_address,
        max_replica_rank=at_top.index(replica_id) if replica_id in at_top else None,
        max_world_size=len(carriers),
        replica_ids=ids,
        handles=tuple(m.handles[group_rank] for m in quorum.members if group_rank < len(m.handles)),
        commit_failures=max(m.commit_failures for m in quorum.members),
    )


def _healers(quorum: Quorum, primary: Member, init_sync: bool) -> tuple[int, ...]:
    """Replica ranks that need the top. At step 0 everybody takes the primary's weights, unless told not to."""
    top = quorum.top
    first_step = init_sync and top.step == 0
    return tuple(
        i
        for i, m in enumerate(quorum.members)
        if m.torn or m.state != top or (first_step and m.replica_id != primary.replica_id)
    )


def _first_source(quorum: Quorum, healer: int, group_rank: int, primary: Member) -> str:
    carriers = quorum.carriers
    if quorum.members[healer] in carriers:
        return primary.replica_id
    return carriers[(healer + group_rank) % len(carriers)].replica_id


def _same_library(healer: Member, pool: tuple[Member, ...]) -> tuple[Member, ...]:
    """State moves only within one library: the peer's is pickle, which we neither send nor read (design 8)."""
    ours = healer.library.startswith(OURS)
    usable = tuple(m for m in pool if m.library.startswith(OURS) == ours)
    if not usable:
        raise TransferError(
            f"{healer.replica_id} ({healer.library or _PEER}) can't heal from "
            f"{', '.join(f'{m.replica_id} ({m.library or _PEER})' for m in pool)}: state is not moved "
            "between the two libraries; run all groups of a job on one of them."
        )
    return usable


def participation(
    plan: Plan,
    *,
    contributes_after_heal: bool,
    mode: WorldSizeMode = WorldSizeMode.DYNAMIC,
    min_replica_size: int = 1,
) -> tuple[int | None, int]:
    """(rank among those whose gradients count or None, their number).

    `contributes_after_heal`: the state is loaded before the forward pass of this very step (synchronous quorum), so
    everybody counts. Otherwise healers send zeros until the next quorum (R10).
    """
    rank, size = (
        (plan.replica_rank, plan.replica_world_size)
        if contributes_after_heal
        else (plan.max_replica_rank, plan.max_world_size)
    )
    if mode is WorldSizeMode.FIXED_WITH_SPARES:
        size = min(size, min_replica_size)
        if rank is not None and rank >= size:
            rank = None
    return rank, size
