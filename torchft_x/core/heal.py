"""Plan the heals of a quorum and the members whose gradients count: pure functions of the quorum message.

Every rank of every group computes its own answer from the same bytes, so nothing has to be agreed on twice. The
arithmetic (the primary, and the source of a healer) is that of torchft's ``compute_quorum_results``, with three more
rules: members are compared by ``(step, committed_in)`` and not by the step alone, a torn member always heals, and a
healer takes the next source after each step that it could not commit: the source before may be out of its reach.
Between hosts the healer's *mirrors*, further carriers, send a part of a large state, or all if the source is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from torchft_x.core.types import Member, Part, Quorum, State, by_rank
from torchft_x.errors import ConfigError, StepError

MIRRORS = 3
"""Most mirrors beside the source. Each holds a copy of the state meanwhile, and two or three fill a link."""


class WorldSizeMode(Enum):
    """Rule for the number of contributing groups when the quorum grows."""

    DYNAMIC = 0  # every group at the top contributes
    FIXED_WITH_SPARES = 1  # at most `min_replica_size` contribute; the rest are spares and contribute zeros


@dataclass(frozen=True, slots=True)
class QuorumPlan:
    """Plan of one group rank in a quorum. "Rank" alone means a replica rank: an index of the members."""

    quorum_id: int
    config_id: int  # the process group is rebuilt when it differs from the one last built
    number: int  # number of the quorum, for people
    replica_rank: int  # own index among all members
    replica_world_size: int  # number of all members
    top: State  # newest complete state: the first step begins at it, and healers copy it (R17)
    heal: bool  # whether this member fetches `top` before its next commit
    sources: tuple[Member, ...]  # members to fetch from, the serving one first; empty: no heal
    source_rank: int | None  # replica rank of sources[0]
    dst_ranks: tuple[int, ...]  # replica ranks that fetch from this member
    store_address: str  # where this group rank's process group meets: the primary's store
    max_replica_rank: int | None  # own index among the members at the top; None: not at the top
    max_world_size: int  # number of members at the top
    replica_ids: tuple[str, ...]  # replica ids of all members, in replica rank order
    handles: tuple[str, ...]  # reconfigure handles of this group rank, one per member; "" where a member has none
    commit_failures: int  # largest number of failed commits in a row of any member
    mirrors: tuple[Member, ...] = ()  # members of `sources` that send parts of the state beside sources[0]
    mirror_of: tuple[int, ...] = ()  # replica ranks that fetch parts from this member as a mirror
    carriers: tuple[str, ...] = ()  # replica ids of the members at the top, in replica rank order
    hosts: tuple[str, ...] = ()  # name or address of each member's host, in replica rank order

    @property
    def offers(self) -> bool:
        """Whether other members copy from this member."""
        return bool(self.dst_ranks or self.mirror_of)

    @property
    def snapshot(self) -> State:
        """Name under which sources offer `top`.

        Before the first commit the quorum is part of it, because each quorum begins at its own weights (`init_sync`).
        A source may have offered other weights, and have copied the present ones since.
        """
        return self.top if self.top.committed_in else State(self.top.step, self.quorum_id)


def plan(
    quorum: Quorum, replica_id: str, group_rank: int, *, init_sync: bool = True, base: State | None = None
) -> QuorumPlan:
    """Return the plan of group rank `group_rank` of member `replica_id` in this quorum.

    `base`: state in which the step begins if not the quorum's top: a later step of the quorum, which all members carry.

    With `init_sync`, members that are all at step 0 start from one member's weights: all others heal from it. It is the
    same member for all group ranks, as the first weights of a model that is sharded over the ranks belong together.

    Raises `ConfigError` if `replica_id` is not a member, and `StepError` if no member holds a complete state.
    """
    members = by_rank(quorum.members)
    replica_ids = tuple(m.replica_id for m in members)
    if replica_id not in replica_ids:
        raise ConfigError(f"{replica_id} is not a member of quorum {quorum.id} ({', '.join(replica_ids)}).")
    settled = quorum.settled
    top = settled.top if base is None else base
    carriers = {m.replica_id for m in settled.carriers}
    at_top = [i for i, m in enumerate(members) if m.replica_id in carriers]
    if not at_top:
        raise StepError(
            f"no member of quorum {quorum.id} holds a complete state ({', '.join(replica_ids)}): every one broke off "
            "in the middle of a heal. Restart the groups, from a checkpoint if there is one."
        )
    own = replica_ids.index(replica_id)
    primary = at_top[group_rank % len(at_top)]  # spreads the load over group ranks
    healers = [i for i in range(len(members)) if i not in at_top or (init_sync and top.step == 0 and i != at_top[0])]
    ready = [i for i in range(len(members)) if i not in healers]
    sources_of = _sources_of(members, healers, ready, group_rank)
    mirrors_of = {r: _mirrors(members, r, choice) for r, choice in sources_of.items()}
    sources = sources_of.get(own, [])
    return QuorumPlan(
        quorum_id=quorum.id,
        config_id=quorum.config_id,
        number=quorum.number,
        replica_rank=own,
        replica_world_size=len(members),
        top=top,
        heal=bool(sources),
        sources=tuple(members[i] for i in sources),
        source_rank=sources[0] if sources else None,
        dst_ranks=tuple(r for r, choice in sources_of.items() if choice[:1] == [own]),
        store_address=members[primary].store_address,
        max_replica_rank=at_top.index(own) if own in at_top else None,
        max_world_size=len(at_top),
        replica_ids=replica_ids,
        handles=tuple(m.handles[group_rank] if group_rank < len(m.handles) else "" for m in members),
        commit_failures=max(m.commit_failures for m in members),
        mirrors=tuple(members[i] for i in mirrors_of.get(own, ())),
        mirror_of=tuple(r for r, choice in mirrors_of.items() if own in choice),
        carriers=tuple(replica_ids[i] for i in at_top),
        hosts=tuple(map(_host, members)),
    )


def first_sources(quorum: Quorum) -> dict[str, str]:
    """Return for each healer the source of its rank 0, as replica ids, for people.

    The result omits members that copy the first weights (`init_sync`): only they know whether they do."""
    members = by_rank(quorum.members)
    carriers = {m.replica_id for m in quorum.carriers}
    ready = [i for i, m in enumerate(members) if m.replica_id in carriers]
    healers = [i for i, m in enumerate(members) if m.replica_id not in carriers]
    found = _sources_of(members, healers, ready, 0)
    return {members[r].replica_id: members[choice[0]].replica_id for r, choice in found.items() if choice}


def later(plan: QuorumPlan) -> QuorumPlan:
    """Return the plan for later steps of the same quorum, which all members carry: there are no more heals."""
    if not (plan.heal or plan.sources or plan.offers):
        return plan  # avoids a copy in each step
    return replace(plan, heal=False, sources=(), source_rank=None, mirrors=(), dst_ranks=(), mirror_of=())


def participation(
    plan: QuorumPlan, *, contributes_after_heal: bool, mode: WorldSizeMode, min_replica_size: int
) -> Part:
    """Return this member's part in the quorum by torchft's rule (R10).

    `contributes_after_heal`: healers apply the state before their forward (synchronous quorum with healing allowed),
    so every member counts at once. Otherwise only members at the top count, which at step 0 are all.
    """
    rank, contributors = plan.max_replica_rank, plan.carriers
    if contributes_after_heal:
        rank, contributors = plan.replica_rank, plan.replica_ids
    if mode is WorldSizeMode.FIXED_WITH_SPARES:
        contributors = contributors[:min_replica_size]
        if rank is not None and rank >= min_replica_size:
            rank = None
    return Part(rank, contributors)


def _sources_of(
    members: tuple[Member, ...], healers: list[int], ready: list[int], group_rank: int
) -> dict[int, list[int]]:
    """Return for each healer the members that it may fetch from, as replica ranks."""
    found: dict[int, list[int]] = {}
    for nth, r in enumerate(healers):
        failed = members[r].commit_failures if members[r].is_ours else 0  # torchft's clients keep to their source
        first = (nth + group_rank + failed) % len(ready) if ready else 0
        found[r] = ready[first:] + ready[:first]
    return found


def _mirrors(members: tuple[Member, ...], healer: int, sources: list[int]) -> list[int]:
    """Return the replica ranks of the healer's mirrors: none if the source is on its host, as memory is fastest."""
    if not sources or _host(members[sources[0]]) == _host(members[healer]):
        return []
    return sources[1 : 1 + MIRRORS]


def _host(member: Member) -> str:
    host = member.address.rpartition("//")[2].partition("/")[0]
    return host.rpartition(":")[0] or host
