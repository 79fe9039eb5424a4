"""The lighthouse's state as JSON-able values, for the status page and for people."""

from __future__ import annotations

from typing import Any

from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberRecord
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
