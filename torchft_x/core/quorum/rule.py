"""May a quorum be formed now, and of whom? A pure function (R6, R9 and the peer's rules).

"Not yet" is an answer: a `Wait` with a reason that an operator can read. What a lighthouse that has just started must
wait for before this question is asked (R8) is in `core.restart.recover`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf

from torchft_x.core.types import JoinReason, Member, Quorum, State, by_rank, listed
from torchft_x.timing import TIMING


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet. `reason` is a sentence that does not change while the situation doesn't."""

    reason: str
    until: float | None = None  # when time alone may end the wait; None: something has to happen
    lease: bool = False  # it may take until the end of somebody's lease
    ending: bool = False  # R21: the job is being finished, by a process that still runs
    finished: bool = False  # R21: it is finished
    running: tuple[str, ...] = ()  # with `lease`: members that may still commit in a quorum which nobody here follows


_WENT_WRONG = (JoinReason.FAILED, JoinReason.REJOINED)  # the process groups are of no use any more

# --- every quorum (R6, R9) -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that has asked and is alive."""

    member: Member
    reason: JoinReason = JoinReason.BOUNDARY
    since: float = 0.0  # when it asked
    patience: float = inf  # seconds that it waits for members that do not ask (R20)
    unreached: tuple[str, ...] = ()  # replica ids of those that it could not connect with


@dataclass(kw_only=True, slots=True)
class QuorumInputs:
    """Everything the decision depends on. Not frozen, which would make each one ten times as dear; nobody changes it."""

    now: float
    cur: Quorum | None  # newest quorum issued or adopted
    open: tuple[Quorum, ...] = ()  # older ones that must be followed, too, see `core.quorum.open_quorums`
    candidates: tuple[Candidate, ...] = ()
    asked_since: float = (
        inf  # when somebody first asked for the quorum after cur, who may have given up since (`one_wait`)
    )
    lost: Collection[str] = frozenset()  # of cur's members: those nobody waits for
    over: Collection[str] = frozenset()  # of all these: those that provably commit nothing more in what they hold (R9b)
    broken: bool = False  # cur's members were told that it is over, so their process groups are gone
    silent_healthy: Collection[str] = frozenset()  # alive, but have not asked
    absent_groups: Collection[str] = frozenset()  # announced by a supervisor, no member of theirs has asked
    held: Mapping[str, State] = field(
        default_factory=dict
    )  # of groups that have not asked: the copies that their supervisors hold
    min_replicas: int = 1
    join_timeout: float = 0.0
    longest_wait: float = 0.0  # for the end of whoever is not over, from the last lease it was sent


@dataclass(frozen=True, slots=True)
class Form:
    """Issue a quorum of these members."""

    members: tuple[Member, ...]  # in the order of their replica ranks
    rebuild: bool  # process groups are rebuilt: the config id changes
    left: Quorum | None = None  # the quorum whose state no member carries on: a new lineage begins (R9b)

    @property
    def new_lineage(self) -> bool:
        return self.left is not None


def form(s: QuorumInputs) -> Form | Wait:
    """Form a quorum of the candidates, or say what is missing."""
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
        running = _running(s, quorum, asked)
        if running:
            return Wait(
                f"No candidate holds the newest state of q{quorum.number} ({quorum.top}), and {listed(running)} may still "
                f"commit in it, or come back with it: waiting for them, for proof that they have ended, or until "
                f"{s.longest_wait:g} s have passed since they were heard of.",
                lease=True,
                running=tuple(running),
            )
    if left is not None:
        wait = _not_all_here(s, chosen, min(s.join_timeout, TIMING.new_lineage), "A new lineage can begin")
        wait = wait or _held_elsewhere(s, chosen)
        if wait:
            return wait
    return Form(members, rebuild=s.broken or _changed(s.cur, members, chosen), left=left)


def wait_for(cur: Quorum, awaited: Collection[str]) -> Wait:
    """R6: these members of the present quorum have yet to ask, and are not lost. Nothing else matters until then."""
    return Wait(f"Waiting for members of q{cur.number} to ask: {listed(awaited)}.")


def _running(s: QuorumInputs, quorum: Quorum, asked: Collection[str]) -> list[str]:
    """Members of this quorum, which no candidate follows, that may go on in it beside the candidates (R9)."""
    return [m.replica_id for m in quorum.members if m.replica_id not in asked and m.replica_id not in s.over]


def _cut_to_shrink(s: QuorumInputs) -> list[Candidate]:
    """If a member of the quorum asks to shrink only, newcomers stay outside. A newcomer that does keeps itself out."""
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
    """The peer's rules: enough, more than half of those alive, and a wait for those alive that have not asked."""
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
    """So long from the first ask, others that are alive or starting are waited for, so that all begin together."""
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
    """M3: a supervisor that is here holds a newer state than all who ask. Its group was killed again while it started, or its
    start takes long; it will bring that state, so it is waited for as long as a member that may come back with one."""
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
        lease=True,
    )


def _heirs(cur: Quorum, whole: Mapping[str, Member]) -> bool:
    """R9(a): is somebody here who was a carrier of cur and stands where it began, or has committed in it? Mere membership
    does not do. `whole`: the candidates that hold a complete state, by replica id.

    Nor does a heal to its top: a carrier that is away may have committed the next step since, with the healer's zeros.
    Nor does a carrier that was to commit a held result first (R14) and has not received cur: another one may have
    committed that result, and what this one meets now may say that it must be reduced again. Only if all of cur's
    members are here has nobody.
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
