"""The lighthouse's state as JSON-able values, and its decisions as sentences: for the status page and for people."""

from __future__ import annotations

from typing import Any

from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberRecord
from torchft_x.core.messages.common import Note
from torchft_x.core.messages.lighthouse import Fence, Issue, LighthouseEffect, Refuse, RevokeQuorum, StopGroup
from torchft_x.core.types import Quorum


def quorum_status(tenure: QuorumState, unix: float) -> dict[str, Any] | None:
    """The present quorum. `unix`: now, in unix seconds; ages in seconds. Inside a grant the step is behind by up to half
    of it: nobody tells each step."""
    q: Quorum | None = tenure.current
    if q is None:
        return None
    carriers = {m.replica_id for m in q.carriers}
    return {
        "id": q.id,
        "config_id": q.config_id,
        "number": q.number,
        "age": unix - q.created,
        "step": max(q.top.step, tenure.reached),
        "committed_in": q.top.committed_in,
        "granted_through": max(q.granted_through, tenure.granted_through),
        "lease": q.lease,
        "broken": tenure.broken,
        "members": [
            {"replica_id": m.replica_id, "step": m.state.step, "heals": m.replica_id not in carriers} for m in q.members
        ],
    }


def member_status(record: MemberRecord, *, inside: bool, over: bool, now: float) -> dict[str, Any]:
    """One member. Ages in seconds."""
    join = record.join
    return {
        "replica_id": record.replica_id,
        "address": record.address,
        "library": record.library,
        "kind": "unary" if record.unary else ("session" if record.session is not None else "away"),
        "heard": now - record.heard,
        "in_quorum": inside,
        "waits": join is not None,
        "waited": now - join.since if join else None,
        "reason": join.reason.value if join else None,
        "step": join.member.state.step if join else None,
        "lost": record.lost,
        "suspected": record.suspected,
        "pause": max(0.0, record.pause_until - now),
        "over": over,
    }


def decided(effect: LighthouseEffect) -> str:
    """What an effect decides; '' for what goes on in every step (grants, quorums of the same members), and for messages
    that only tell what is known."""
    match effect:
        case Note():
            return effect.text
        case Issue(quorum) if quorum.config_id == quorum.id:
            groups = f"{len(quorum.members)} members, {len(quorum.carriers)} of them up to date"
            return f"Quorum q{quorum.number} is formed at {quorum.top}: {groups}."
        case RevokeQuorum() if effect.sessions:
            return f"Quorum {effect.quorum_id} is over for {len(effect.sessions)} members: {effect.reason}"
        case Fence(by=by):
            return f"An older life must stop: {by} is running."
        case Refuse(sentence):
            return f"Refused: {sentence}"
        case StopGroup(group, sentence):
            return f"Group {group} is stopped: {sentence}"
    return ""
