"""Shows the lighthouse's state as values, for `observe.view`, and its decisions as sentences."""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.heal import first_sources
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import LEFT, MemberRecord
from torchft_x.core.messages import Note
from torchft_x.core.messages.job import TellStop
from torchft_x.core.messages.lighthouse import Fence, Issue, LighthouseEffect, Refuse, RevokeQuorum
from torchft_x.core.types import Quorum


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberView:
    """One member, at one moment. Times are seconds until that moment, except that of a pause."""

    replica_id: str
    index: int  # in the order in which members came
    attempt: int  # number of its attempt
    inside: bool  # whether it is a member of the present quorum
    carrier: bool  # whether it is up to date in the present quorum
    source: str  # replica id of the member that it copies from; '': it doesn't
    asked: float | None  # how long it has waited for the next quorum; None: it has not asked
    step: int | None  # step at which it was last known to stand
    lost: str  # why nobody waits for it
    left: bool  # whether it is lost because it has said goodbye
    late: bool  # whether it lives, but did not come
    suspected: bool
    stopped: str  # the process of it that is stopped (SIGSTOP, a debugger), in words
    connected: bool  # whether it has a session, or is a client of torchft's
    unary: bool  # whether it is a client of torchft's
    rehearses: bool  # whether others train on without it until it asks
    pause: float  # seconds left of a pause that it has announced
    pause_reason: str
    heard: float  # time since its last sign of life


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What a lighthouse knows, at one moment."""

    quorum: Quorum | None
    age: float  # seconds since the quorum was issued
    reached: int  # newest step that one of its members has reported
    broken: str  # why the quorum was revoked; '': it was not
    undecided: str  # why there is no next quorum yet
    members: tuple[MemberView, ...]
    min_replicas: int


def view(
    members: MemberTable,
    quorum_state: QuorumState,
    config: LighthouseConfig,
    *,
    now: float,
    unix: float,
    undecided: str,
) -> View:
    """Return what the lighthouse knows at one moment, which is `now` and `unix` on the two clocks."""
    quorum = quorum_state.current
    carriers = {m.replica_id for m in quorum.carriers} if quorum is not None else set()
    sources = first_sources(quorum) if quorum is not None and len(carriers) < len(quorum.members) else {}
    joined = {m.replica_id: m.state.step for m in quorum.members} if quorum is not None else {}

    def member_view(r: MemberRecord) -> MemberView:
        inside, carrier = r.replica_id in quorum_state.inside, r.replica_id in carriers
        step = r.join.member.state.step if r.join is not None else joined.get(r.replica_id)
        stopped = members.supervisors.stopped_of(r.attempt_id.token, now - config.silence.host)
        return MemberView(
            replica_id=r.replica_id,
            index=r.index,
            attempt=r.attempt_id.number,
            inside=inside,
            carrier=carrier,
            source=sources.get(r.replica_id, ""),
            asked=now - r.join.since if r.join is not None else None,
            step=quorum_state.reached if carrier and r.join is None and not r.lost else step,
            lost=r.lost,
            left=r.lost == LEFT,
            late=r.late,
            suspected=r.suspected,
            stopped=stopped.who if stopped is not None else "",
            connected=r.unary or r.session is not None,
            unary=r.unary,
            rehearses=not r.unary and quorum_state.goes_on_without(r.replica_id, config.min_replicas),
            pause=max(0.0, r.pause_until - now),
            pause_reason=r.pause_reason,
            heard=now - r.heard,
        )

    return View(
        quorum=quorum,
        age=unix - quorum.created if quorum is not None else 0.0,
        reached=quorum_state.reached if quorum is not None else 0,
        broken=quorum_state.broken,
        undecided=undecided,
        members=tuple([member_view(r) for r in members]),
        min_replicas=config.min_replicas,
    )


def decided(effect: LighthouseEffect) -> str:
    """Return what an effect decides, as a sentence.

    It is '' for what happens in every step (grants, quorums of the same members), and for messages that only repeat
    what is known.
    """
    match effect:
        case Note():
            return effect.text
        case Issue(quorum) if quorum.config_id == quorum.id:
            groups = f"{len(quorum.members)} members, {len(quorum.carriers)} of them up to date"
            return f"Quorum q{quorum.number} is formed at {quorum.top}: {groups}."
        case RevokeQuorum() if effect.sessions:
            return f"Quorum {effect.quorum_id} is over for {len(effect.sessions)} members: {effect.reason}"
        case Fence(by=by):
            return f"An older attempt must stop: {by} is running."
        case Refuse(sentence):
            return f"Refused: {sentence}"
        case TellStop(group=group, sentence=sentence):
            return f"Group {group} is stopped: {sentence}"
    return ""
