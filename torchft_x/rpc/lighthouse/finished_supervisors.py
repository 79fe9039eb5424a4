"""Finished supervisors in the journal, for a job's next lighthouse.

Live supervisors repeat their reports when they reconnect. Finished ones do not come back, so the roster of a restarted
lighthouse would count their groups as lost. Therefore the journal keeps, for each finished supervisor, what restores
the roster's knowledge.
"""

from __future__ import annotations

from torchft_x.core.messages import job as r
from torchft_x.rpc.lighthouse.failover.journal import JournalContents
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import limits


def entry(
    event: r.SupervisorFinished, here: r.SupervisorHere, begun: r.AttemptStarted, together: frozenset[str]
) -> pb.Done:
    """Return the entry for the end of this supervisor, of which the roster knows the rest (`JobOutcome.known`)."""
    return pb.Done(
        group=event.group,
        node=event.node,
        nodes=here.nodes,
        host=here.host,
        attempt=begun.attempt,
        attempt_token=begun.attempt_token,
        code=event.code,
        sentence=event.sentence[: limits.MAX_TEXT],
        together=sorted(together),
    )


def restored(found: JournalContents) -> list[r.RosterEvent]:
    """Return the events that restore the finished supervisors of a journal, and the attempts of its newest quorum."""
    events: list[r.RosterEvent] = []
    for d in found.done:
        events.append(r.SupervisorHere(d.group, d.host, d.node, max(1, d.nodes)))
        if d.attempt_token:
            events.append(r.AttemptStarted(d.group, d.attempt, d.attempt_token))
        if d.together:
            events.append(r.QuorumIssued(frozenset(d.together)))
        events.append(r.SupervisorFinished(d.group, d.code, d.sentence, d.node))
        events.append(r.SupervisorGone(d.group, d.node))
    if found.entry is not None:
        events.append(r.QuorumIssued(frozenset(k.attempt_id.token for k in found.entry.members if k.attempt_id.token)))
    return events
