"""Who forms the next quorum, or why nobody does yet. A pure function of what the lighthouse knows.

Rules R5, R6, R8, R9 of the protocol, and for the first quorum the peer's: enough participants, more than half of the
healthy, and a bounded wait for the healthy that have not asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.types import Member, Quorum


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that waits for a quorum."""

    member: Member
    since: float  # when it asked


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """All that the decision depends on."""

    candidates: tuple[Candidate, ...]  # live and waiting, in any order
    cur: Quorum | None = None  # newest quorum issued or adopted
    lost: frozenset[str] = frozenset()  # members of cur that are not waited for
    over: frozenset[str] = frozenset()  # members of cur that provably can't commit any more
    healthy: int = 0  # live members, waiting or not
    absent: int = 0  # announced groups of which no member waits
    fresh: str = ""  # why a fresh lighthouse may not form yet (R8); empty: it may
    min_replicas: int = 1
    join_timeout: float = 0.1


@dataclass(frozen=True, slots=True)
class Form:
    """These members, sorted by replica id. `new_lineage`: no carrier of the old quorum is in it (R9b)."""

    members: tuple[Member, ...]
    new_lineage: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet. The reason is what the operator sees."""

    reason: str


def form(view: View, now: float) -> Form | Wait:
    """Decide. `now` is on the clock of `Candidate.since`."""
    members = {c.member.replica_id: c.member for c in view.candidates}
    if not members:
        return Wait("nobody has asked for a quorum")
    if view.fresh:
        return Wait(view.fresh)
    if any(m.shrink_only for m in members.values()) and view.cur is not None:
        old = {m.replica_id for m in view.cur.members}
        members = {r: m for r, m in members.items() if r in old}
    if len(members) < view.min_replicas:
        return Wait(f"need {view.min_replicas} groups (min_replicas), only {len(members)} asked: {_names(members)}")
    if view.cur is None:
        return _first(view, members, now)
    return _successor(view, view.cur, members)


def _first(view: View, members: dict[str, Member], now: float) -> Form | Wait:
    """The peer's rules 4-6."""
    if len(members) <= view.healthy // 2:
        return Wait(
            f"need more than half of {view.healthy} healthy groups, only {len(members)} asked: {_names(members)}"
        )
    stragglers = max(view.healthy - len(members), 0) + view.absent
    since = min(c.since for c in view.candidates)
    left = since + view.join_timeout - now
    if stragglers and left > 0:
        return Wait(f"waiting up to {view.join_timeout:g} s (join timeout) for {stragglers} healthy groups to ask")
    return Form(_sorted(members), new_lineage=False)


def _successor(view: View, cur: Quorum, members: dict[str, Member]) -> Form | Wait:
    """R6: everybody in cur that is not lost has asked. R9: a carrier goes along, or all who stay out are over."""
    awaited = [m.replica_id for m in cur.members if m.replica_id not in members and m.replica_id not in view.lost]
    if awaited:
        return Wait(f"waiting for {', '.join(awaited)} of q{cur.number} to reach a step boundary")
    top, carriers = cur.top, {m.replica_id for m in cur.carriers}
    heirs = [
        m.replica_id
        for m in members.values()
        if not m.torn and cur.member(m.replica_id) is not None and (m.replica_id in carriers or m.state >= top)
    ]
    if heirs:
        return Form(_sorted(members), new_lineage=False)
    alive = [m.replica_id for m in cur.members if m.replica_id not in members and m.replica_id not in view.over]
    if alive:
        return Wait(
            f"none of q{cur.number}'s up-to-date members is here, and {', '.join(alive)} may still be training "
            "(until its lease is over or its death is proven)"
        )
    return Form(_sorted(members), new_lineage=True)


def _sorted(members: dict[str, Member]) -> tuple[Member, ...]:
    return tuple(members[r] for r in sorted(members))


def _names(members: dict[str, Member]) -> str:
    return ", ".join(sorted(members)) or "none"
