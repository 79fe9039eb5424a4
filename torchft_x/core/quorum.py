"""Decides whether a quorum can be formed now, and of which members (R6, R9 and torchft's rules). Pure.

"Not yet" is an answer: a `Wait` with a reason that an operator can read. `core.lighthouse.recover` decides what a
lighthouse that has just started must wait for before it asks here (R8).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf

from torchft_x.core.types import JoinReason, Member, Quorum, State, by_rank, listed
from torchft_x.timing import TIMING


@dataclass(frozen=True, slots=True)
class Wait:
    """The answer "not yet". `reason` is a sentence that stays the same while the situation does."""

    reason: str
    until: float | None = None  # when time alone may end the wait; None: only an event can
    ending: bool = False  # R21: the job is being finished, by a process that still runs
    finished: bool = False  # R21: the job is finished


_WENT_WRONG = (JoinReason.FAILED, JoinReason.REJOINED)  # the process groups can't be used any more

# --- every quorum (R6, R9) -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that has asked for the next quorum and is alive. Times in seconds."""

    member: Member
    reason: JoinReason = JoinReason.BOUNDARY
    since: float = 0.0  # when it asked
    patience: float = inf  # how long it waits for members that do not ask (R20)
    unreached: tuple[str, ...] = ()  # replica ids of members that it could not connect to


@dataclass(kw_only=True, slots=True)
class QuorumInputs:
    """Inputs of the decision, in seconds; never changed. Not frozen: making a frozen one takes ten times as long."""

    now: float
    cur: Quorum | None  # newest quorum issued or adopted
    open: tuple[Quorum, ...] = ()  # older ones to be followed, too (`core.membership.current_quorum`)
    candidates: tuple[Candidate, ...] = ()
    asked_since: float = inf  # first ask for the quorum after cur, by a member that may have given up (`one_wait`)
    lost: Collection[str] = frozenset()  # members of cur that nobody waits for
    over: Collection[str] = frozenset()  # members of cur and `open` that provably commit nothing more there (R9b)
    broken: bool = False  # cur was revoked, so its members' process groups are gone
    silent_healthy: Collection[str] = frozenset()  # members that are alive, but have not asked
    absent_groups: Collection[str] = frozenset()  # announced by a supervisor, and no member of theirs is here
    # Group that has not asked -> the state of which its supervisors hold copies.
    held: Mapping[str, State] = field(default_factory=dict)
    min_replicas: int = 1
    join_timeout: float = 0.0
    longest_wait: float = 0.0  # for a member's end that nothing proves, from the last lease sent to it


@dataclass(frozen=True, slots=True)
class Form:
    """The decision to issue a quorum of these members."""

    members: tuple[Member, ...]  # in the order of their replica ranks
    rebuild: bool  # whether process groups are rebuilt: the config id changes
    left: Quorum | None = None  # quorum whose state no member carries on, so that a new lineage begins (R9b)


def form(s: QuorumInputs) -> Form | Wait:
    """Return the quorum that the candidates can form, or what is missing for one."""
    chosen = _cut_to_shrink(s)
    asked = {c.member.replica_id: c.member for c in chosen}
    if s.cur is not None:
        awaited = [m.replica_id for m in s.cur.members if m.replica_id not in asked and m.replica_id not in s.lost]
        if awaited:
            return wait_for(s.cur, awaited)
    members = by_rank(asked.values())
    if s.cur is None:
        wait = _first_quorum(s, chosen, members) or _held_elsewhere(s, chosen)
        return wait or Form(members, rebuild=True)
    followed = (s.cur, *s.open)
    wait = _too_few(s, members)
    if wait:
        return wait
    whole = {name: m for name, m in asked.items() if not m.torn}
    left: Quorum | None = None
    for quorum in followed:
        if _heirs(quorum, whole):
            continue
        left = left or quorum
        running = [m.replica_id for m in quorum.members if m.replica_id not in asked and m.replica_id not in s.over]
        if running:  # they may go on in this quorum, which no candidate follows (R9)
            return Wait(
                f"No candidate holds the newest state of q{quorum.number} ({quorum.top}), and {listed(running)} may still "
                f"commit in it, or come back with it: waiting for them, for proof that they have ended, or until "
                f"{s.longest_wait:g} s have passed since they were heard of."
            )
    if left is not None:
        wait = _not_all_here(s, chosen, min(s.join_timeout, TIMING.new_lineage), "A new lineage can begin")
        wait = wait or _held_elsewhere(s, chosen)
        if wait:
            return wait
    return Form(members, rebuild=s.broken or _changed(s.cur, members, chosen), left=left)


def wait_for(cur: Quorum, awaited: Collection[str]) -> Wait:
    """Return the wait for these members of the present quorum, which are not lost and have yet to ask (R6)."""
    return Wait(f"Waiting for members of q{cur.number} to ask: {listed(awaited)}.")


def _cut_to_shrink(s: QuorumInputs) -> list[Candidate]:
    """Return the candidates, without newcomers if a member of the quorum asks to shrink only.

    A newcomer that asks to shrink only keeps itself out.
    """
    shrinking = [c for c in s.candidates if c.member.shrink_only]
    if s.cur is None or not shrinking:
        return list(s.candidates)
    inside = {m.replica_id for m in s.cur.members}
    if not any(c.member.replica_id in inside for c in shrinking):
        return [c for c in s.candidates if not c.member.shrink_only]
    return [c for c in s.candidates if c.member.replica_id in inside]


def _too_few(s: QuorumInputs, members: tuple[Member, ...]) -> Wait | None:
    if len(members) >= s.min_replicas:
        return None
    names = f" ({listed([m.replica_id for m in members])})" if members else ""
    return Wait(
        f"New quorum not ready, only have {len(members)} participants{names}, need min_replicas {s.min_replicas}."
    )


def _first_quorum(s: QuorumInputs, chosen: list[Candidate], members: tuple[Member, ...]) -> Wait | None:
    """Return what torchft's rules find missing for a first quorum.

    They ask for enough candidates, for more than half of the members alive, and for a wait for the rest of these.
    """
    too_few = _too_few(s, members)
    if too_few:
        return too_few
    healthy = len(chosen) + len(s.silent_healthy)
    if len(chosen) <= healthy // 2:
        return Wait(
            f"New quorum not ready, only have {len(chosen)} participants, need more than half of {healthy} healthy "
            f"groups; not asked yet: {listed(sorted(s.silent_healthy))}."
        )
    return _not_all_here(s, chosen, s.join_timeout, "Valid quorum")


def _not_all_here(s: QuorumInputs, chosen: list[Candidate], seconds: float, what: str) -> Wait | None:
    """Return a wait for others that are alive or starting, so that all begin together.

    The wait ends `seconds` after the first ask. `what`: the beginning of its reason.
    """
    until = min(s.asked_since, *(c.since for c in chosen)) + seconds
    stragglers = [*sorted(s.silent_healthy), *(f"group {g}" for g in sorted(s.absent_groups))]
    if stragglers and s.now < until:
        return Wait(
            f"{what} with {len(chosen)} participants, waiting until the join timeout for those alive that have "
            f"not asked yet: {listed(stragglers)}.",
            until,
        )
    return None


def _held_elsewhere(s: QuorumInputs, chosen: list[Candidate]) -> Wait | None:
    """Return a wait while a supervisor that is here holds a newer state than all candidates (M3).

    Its group was killed again while it started, or starts slowly, and will bring that state. It is waited for as long
    as a member that may come back with one.
    """
    best = max((c.member.state for c in chosen if not c.member.torn), default=State())
    newer = {group: state for group, state in s.held.items() if state > best}
    until = min(s.asked_since, *(c.since for c in chosen)) + s.longest_wait
    if not newer or s.now >= until:
        return None
    holds = listed([f"group {group} ({newer[group]})" for group in sorted(newer)])
    return Wait(
        f"Nobody who has asked stands further than {best}, and supervisors hold newer states in memory: waiting for {holds} to "
        f"start again, or until {s.longest_wait:g} s have passed since the first ask.",
        until,
    )


def _heirs(cur: Quorum, whole: Mapping[str, Member]) -> bool:
    """Return whether a candidate carries `cur` on (R9(a)): a carrier at its start, or a member that committed in it.

    `whole`: the candidates that hold a complete state, by replica id. These do not count, unless all of cur's members
    are here, so that none can have committed elsewhere:

    * A mere member, even one that healed to cur's top. A carrier that is away may have committed the next step since,
      with the healer's zeros.
    * A carrier that was to commit a held result first (R14) and has not received cur. Another one may have committed
      that result, and the quorum formed now may say that it must be reduced again.
    """
    settled = cur.settled
    top = settled.top
    for m in settled.carriers:
        if m.replica_id in whole and whole[m.replica_id].state >= top:
            return True
    here = [whole[m.replica_id] for m in cur.members if m.replica_id in whole]
    return len(here) == len(cur.members) or any(m.state > top for m in here)


def _changed(cur: Quorum, members: tuple[Member, ...], chosen: list[Candidate]) -> bool:
    if [m.replica_id for m in members] != [m.replica_id for m in cur.members]:
        return True
    failed = [c for c in chosen if c.member.commit_failures > 0 or c.reason in _WENT_WRONG]
    return bool(failed)
